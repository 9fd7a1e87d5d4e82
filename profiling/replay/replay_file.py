"""`replay.json`: a replay, kept for other commands."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from profiling.onednn_log.memory_descriptor import MemoryDescriptor
from profiling.onednn_log.problem import Problem
from profiling.replay.replay import Conditions, Replay, ReplayTime
from retinanet.errors import InputError
from retinanet.json_objects import read_json_object
from retinanet.output_files import write_whole

FORMAT = "profilednn replay 1"
ADVICE = "expected what `python -m profiling benchdnn` writes"


def save_replay(replay: Replay, file: Path) -> None:
    """Write a replay; a file that is there is replaced, so ask before the work.

    Raises:
        InputError: It cannot be written there.
    """
    content = {
        "format": FORMAT,
        "runner": replay.runner,
        "version": replay.version,
        "instruction_set": replay.instruction_set,
        "conditions": asdict(replay.conditions),
        "other_cores": replay.other_cores,
        "times": [
            {"problem": asdict(problem), **asdict(time)} for problem, time in replay.times.items()
        ],
        "not_replayed": [
            {"problem": asdict(problem), "why": why} for problem, why in replay.not_replayed.items()
        ],
    }
    write_whole(file, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def load_replay(file: Path) -> Replay:
    """Read what `save_replay` wrote.

    Raises:
        InputError: It cannot be read, or is no such file.
    """
    content = read_json_object(file, advice=ADVICE)
    if content.get("format") != FORMAT:
        raise InputError(f"{file}: holds no replay; {ADVICE}")
    try:
        return replay_of(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file}: is damaged: {type(error).__name__}: {error}") from error


def replay_of(content: dict[str, Any]) -> Replay:
    """A replay from JSON.

    Raises:
        KeyError, TypeError, ValueError: A field is missing, or of another kind.
    """
    conditions = content["conditions"]
    return Replay(
        runner=content["runner"],
        version=content["version"],
        instruction_set=content["instruction_set"],
        conditions=Conditions(
            threads=int(conditions["threads"]),
            cpus=tuple(conditions["cpus"]),
            memory_nodes=tuple(conditions["memory_nodes"]),
        ),
        times={problem_of(one["problem"]): time_of(one) for one in content["times"]},
        not_replayed={problem_of(one["problem"]): one["why"] for one in content["not_replayed"]},
        other_cores=float(content.get("other_cores", 0.0)),
    )


def problem_of(fields: dict[str, Any]) -> Problem:
    """A problem from JSON."""
    memories = tuple(MemoryDescriptor(**one) for one in fields["memories"])
    return Problem(**{**fields, "memories": memories})


def time_of(fields: dict[str, Any]) -> ReplayTime:
    """A problem's times from JSON."""
    cold = fields["cold_ms"]
    return ReplayTime(
        hot_ms=float(fields["hot_ms"]),
        cold_ms=None if cold is None else float(cold),
        runs=int(fields["runs"]),
        implementation=fields["implementation"],
    )
