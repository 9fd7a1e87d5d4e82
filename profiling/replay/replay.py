"""What came out of running a log's problems again.

TODO-DOC `replay.json`: a replay, kept for other commands.

TODO-DOC Under what a log's problems ran, as far as this machine can do the same.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import read_json_object, write_whole
from launch.pinning import choose_cores
from launch.topology import format_cpu_list, parse_cpu_list
from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.problem import MemoryDescriptor, Problem


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under what a log's problems ran, as far as it says, and are to be run again."""

    threads: int
    cpus: tuple[int, ...] = ()
    """Logical CPUs; none: those that this process may use."""
    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes that memory comes from; none: as the kernel chooses."""


@dataclass(frozen=True, slots=True)
class ReplayTime:
    """One problem, run again several times."""

    hot_ms: float
    """Median of runs one after the other: data is in the caches, as far as it fits."""
    cold_ms: float | None
    """Median of runs whose data was driven out of the caches before; None: not measured."""
    runs: int
    """Runs that each median is over."""
    implementation: str
    """What the library chose, in a log's words."""


@dataclass(frozen=True)
class Replay:
    """Times of problems, and how they were taken."""

    runner: str
    """`benchdnn` or `torch`."""
    version: str
    """oneDNN's: `3.7.2`."""
    instruction_set: str
    """As the library calls it."""
    conditions: Conditions
    times: dict[Problem, ReplayTime] = field(default_factory=dict)
    not_replayed: dict[Problem, str] = field(default_factory=dict)
    """Why a problem has no time, in one line."""
    other_cores: float = 0.0
    """Cores that other work kept busy meanwhile; 0 where a file does not say."""


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


def conditions_of(
    log: OneDnnLog,
    *,
    threads: int | None,
    cpus: str | None,
    say: Callable[[str], None] = lambda _: None,
) -> Conditions:
    """Threads, cores and memory nodes of the log's first rank, within what this process may use.

    Args:
        log: Its facts go before its header, which knows of threads alone.
        threads: In place of the log's.
        cpus: In place of the log's, as `0-3`.
        say: Told, in one line each, what differs from the log and why.

    Raises:
        InputError: `cpus` is no list, or has a CPU that this process may not use.
    """
    facts: dict[str, Any] = log.facts[0] if log.facts else {}
    allowed = frozenset(os.sched_getaffinity(0))
    if cpus is None:
        chosen = within(numbers(facts.get("cpus")), allowed, say=say)
    else:
        chosen = given(cpus, allowed)
    available = choose_cores(threads=None, cpus=tuple(chosen)).threads
    wanted = threads or next(iter(log.run_threads), available)
    count = min(wanted, available)
    if count < wanted:
        whose = "asked for" if threads else "of the log"
        say(f"{wanted} threads {whose}, {count} here: there are no more cores for them")
    if log.ranks[1:] and cpus is None and facts:
        say(f"the log is of {len(log.ranks)} ranks; its problems run again alone, as rank 0 had it")
    return Conditions(
        threads=count,
        cpus=tuple(sorted(chosen)),
        memory_nodes=tuple(sorted(numbers(facts.get("memory_nodes")))) if chosen else (),
    )


def numbers(value: object) -> frozenset[int]:
    """CPUs or nodes of a log's facts: `0-3`, or a list; nothing where there are none."""
    if isinstance(value, list):
        return frozenset(one for one in value if isinstance(one, int))
    try:
        return parse_cpu_list(value) if isinstance(value, str) else frozenset()
    except ValueError:
        return frozenset()


def within(
    told: frozenset[int], allowed: frozenset[int], *, say: Callable[[str], None]
) -> frozenset[int]:
    """Of the log's CPUs those that this process may use; none where it may use none of them."""
    kept = told & allowed
    if told - allowed:
        instead = format_cpu_list(kept) or f"any of {format_cpu_list(allowed)}"
        say(
            f"CPUs {format_cpu_list(told)} of the log, {instead} here: this process may use no "
            "others"
        )
    return kept


def given(text: str, allowed: frozenset[int]) -> frozenset[int]:
    """The CPUs of `--cpus`.

    Raises:
        InputError: It is no list of CPUs, or has one that may not be used.
    """
    try:
        chosen = parse_cpu_list(text)
    except ValueError as error:
        raise InputError(f"--cpus: {error}") from None
    if not chosen or chosen - allowed:
        raise InputError(
            f"--cpus: {text!r}: this process may use {format_cpu_list(allowed)}; name some of these"
        )
    return chosen
