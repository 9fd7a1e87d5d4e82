"""Two variants' calls of oneDNN, held against each other as `profiling compare` does."""

from collections.abc import Mapping
from pathlib import Path

from profiling.ablate.result import ComparedCalls
from profiling.bench.contestant import Contestant
from profiling.bench.crew import Crew
from profiling.compare.comparison import compare, kinds_of
from profiling.compare.side import side_of
from profiling.onednn_log.read import read_logs
from retinanet.output_files import write_whole


def calls_of(
    names: tuple[str, str], crew: Crew, contestants: Mapping[str, Contestant], *, folder: Path
) -> ComparedCalls | None:
    """Record a step of each, and what `compare` finds in the two logs, which stay in the folder.

    None where one of the two cannot run here.
    """
    if not all(name in contestants for name in names):
        return None
    sides = []
    for name in names:
        log = folder / f"{name}.log"
        write_whole(log, crew.worker(contestants[name]).ask("log")["log"])
        sides.append(side_of(name, read_logs([log]), by_step=False))
    found = compare(*sides, with_types=True, is_by_step=False)
    return {
        "first": names[0],
        "second": names[1],
        "logs": [f"{name}.log" for name in names],
        "kinds": [
            {
                "kind": kind.name,
                "first_calls": kind.first_calls,
                "second_calls": kind.second_calls,
                "first_ms": kind.first_ms,
                "second_ms": kind.second_ms,
            }
            for kind in kinds_of(found.pairs)
        ],
        "only_one": [
            {
                "kind": pair.question.kind,
                "direction": pair.question.direction,
                "shape": pair.question.shape,
                "extra_calls": pair.extra_calls,
                "extra_ms": pair.extra_ms,
            }
            for pair in found.only_one[:20]
        ],
    }
