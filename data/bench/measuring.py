"""A benchmark of photos from start to end."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from data.bench.contestants import contestants_of_a_core, loaders
from data.bench.photos import write_list
from data.bench.report import find
from data.bench.source import Source
from data.decoding import DECODERS, describe_decoder
from data.decoding.decoders import fault_of
from profiling.bench.benchmark import Benchmark
from profiling.bench.contestant import Contestant
from profiling.bench.measure import measure
from profiling.bench.results import Results
from profiling.bench.workload import Workload
from retinanet.errors import InputError

WARM_UP = 1


def describe_decoders(chosen: str | None, *, console: Console) -> dict[str, str]:
    """Decoders with their versions: the chosen, or all that work here; of the others a line.

    Raises:
        InputError: A chosen one is not known, not installed, or does not work.
    """
    described = {}
    for name in DECODERS if chosen is None else chosen.split(","):
        if name not in DECODERS:
            raise InputError(f"--decoders: {name!r} is not known; known are {', '.join(DECODERS)}")
        fault = fault_of(name)
        if fault is None:
            described[name] = describe_decoder(name)
        elif chosen is None:
            console.print(f"{name} is left out: it {fault}", soft_wrap=True)
        else:
            raise InputError(f"--decoders: {name} {fault}; or leave it out")
    return described


def measure_photos(
    source: Source,
    decoders: Sequence[str],
    *,
    batch_size: int,
    rounds: int,
    workers: int,
    scratch: Path,
    console: Console,
) -> Results:
    """Let everybody read the photos in turn.

    Args:
        source: The photos.
        decoders: Those that work here, the fastest first.
        batch_size: Images joined into one batch.
        rounds: Counted turns.
        workers: Loaders with 1 to so many processes take part too.
        scratch: A folder for the list of photos.
        console: Where progress is shown.

    Raises:
        WorkerDiedError: A contestant could not go on, such as over a damaged image.
    """
    photos = scratch / "photos.json"
    write_list(source.photos, photos)
    workload = Workload(images=len(source.photos), image_size=source.image_size)
    on_a_core = contestants_of_a_core(decoders, photos=photos, batch_size=batch_size)
    results = take_turns(on_a_core, workload, rounds=rounds, console=console)
    if not workers:
        return results
    # Apart: the time of their processes would be taken for other work on the machine.
    on_all_cores = loaders(decoders[0], photos=photos, batch_size=batch_size, workers=workers)
    others = take_turns(on_all_cores, workload, rounds=rounds, console=console)
    return replace(
        results,
        contestants=[*on_a_core, *on_all_cores],
        runs={**results.runs, **others.runs},
        facts={**results.facts, **others.facts},
    )


def take_turns(
    contestants: Sequence[Contestant], workload: Workload, *, rounds: int, console: Console
) -> Results:
    """Let contestants do the workload in turn, each in its own process."""
    benchmark = Benchmark(
        name="data",
        about="files to batches",
        contestants=contestants,
        findings=find,
        rounds=rounds,
        warm_up=WARM_UP,
    )
    return measure(
        benchmark,
        contestants,
        workload,
        rounds=rounds,
        warm_up=WARM_UP,
        where=False,
        console=console,
    )
