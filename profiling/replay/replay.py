"""A replay: the times of a log's problems run alone, and the functions common to all runners.

`replay.json` keeps one for other commands. Conditions are threads, cores and memory nodes of the
log as far as this machine has them. Two lines of any versions of oneDNN are the same work if kind,
direction, sizes, types and fused operations are equal (`normalize_work`), and layouts as far as the
caller and not the library chooses them (`same_layouts`).
"""

import os
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from common.cli import positive
from common.console import print_line
from common.errors import InputError
from common.options import flag, option
from common.stored import read_stored
from common.wording import counted
from launch.pinning import choose_cores
from launch.topology import format_cpu_list, parse_cpu_list
from profiling.bench.results import disturbance
from profiling.onednn_log.log import Calls, OneDnnLog
from profiling.onednn_log.work import MemoryDescriptor, Problem, listed_sizes, modern_shape
from profiling.replay.benchdnn_fields import Layouts


@dataclass(frozen=True, slots=True)
class Conditions:
    """Threads, cores and memory nodes of a log, under which its problems run again."""

    threads: int
    cpus: tuple[int, ...] = ()  # Logical CPUs; none: those that this process may use
    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes that memory comes from; none: as the kernel chooses."""

    @property
    def place(self) -> str:
        """The number of threads and their cores."""
        count = counted(self.threads, "thread")
        return f"{count} on CPUs {format_cpu_list(self.cpus)}" if self.cpus else count


@dataclass(frozen=True, slots=True)
class ReplayTime:
    """One problem, run again several times; medians of the runs."""

    problem: Problem
    hot_ms: float  # Runs one after the other: data is in the caches, as far as it fits
    cold_ms: float | None  # Runs whose data was driven out of the caches before; None: not measured
    runs: int
    implementation: str  # The library's choice, as a log names it


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """One problem without a time."""

    problem: Problem
    why: str  # In one line


@dataclass(frozen=True)
class Replay:
    """Times of problems, and how they were taken; the fields are those of the file."""

    format: Literal["profilednn replay 1"] = field(default="profilednn replay 1", kw_only=True)
    runner: str  # `benchdnn` or `torch`
    version: str  # oneDNN's: `3.7.2`
    instruction_set: str
    conditions: Conditions
    other_cores: float = field(default=0.0, kw_only=True)  # That other processes kept busy
    times: list[ReplayTime]
    not_replayed: list[NotReplayed]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The options of how problems run again."""

    repeats: int = option(
        "timed runs of each problem, fewer of slow ones",
        default=20,
        parse=positive,
        metavar="N",
        group="replay",
    )
    cold: bool = flag(
        "also measure with the data removed from the caches", default=True, group="replay"
    )
    threads: int | None = option(
        "compute threads (default: as in the log)",
        default=None,
        parse=positive,
        metavar="N",
        group="replay",
    )


LONGEST_SECONDS, FEWEST_RUNS = 2.0, 3
"""The time of a problem's hot runs, and of its cold ones; the fewest may take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Problems to run, and how."""

    calls: Mapping[Problem, Calls]
    conditions: Conditions
    options: ReplayOptions
    layouts: Layouts = "log"  # That benchdnn requests
    file: Path | None  # To save the replay in, if any


ADVICE = "expected a file that `retinanet profile benchdnn` writes"


def load_replay(file: Path) -> Replay:
    """Return what `run_again` has written.

    Raises:
        InputError: It cannot be read, or is no such file.
    """
    return read_stored(file, Replay, wrong="is not a replay", advice=ADVICE)


@dataclass(frozen=True, slots=True)
class ReplayedCalls:
    """A problem's calls in a log, beside the same problem alone."""

    problem: Problem
    calls: int
    total_ms: float  # Of all calls in the log
    alone: ReplayTime | None
    why_not: str  # Why it has no time alone; empty where it has

    @property
    def description(self) -> str:
        """The problem and its implementation; once if log and replay agree."""
        problem, alone = self.problem, [self.alone.implementation] if self.alone else []
        ways = " → ".join(dict.fromkeys((problem.implementation, *alone)))
        return "\n".join(filter(None, (problem.name, problem.shape, problem.types, ways)))

    @property
    def mean_ms(self) -> float:
        """The time of a call in the log."""
        return self.total_ms / self.calls

    @property
    def log_over_hot(self) -> float | None:
        """The ratio of its time in the log to its time alone with data in the caches."""
        return self.mean_ms / self.alone.hot_ms if self.alone and self.alone.hot_ms else None

    @property
    def lost_ms(self) -> float:
        """Its time in the log minus that of the hot replay; negative if the log's is shorter."""
        return self.total_ms - self.alone.hot_ms * self.calls if self.alone else 0.0


def beside_replay(calls: Mapping[Problem, Calls], replay: Replay) -> list[ReplayedCalls]:
    """Return each of a log's problems beside its replay, in the log's order."""
    times = {time.problem: time for time in replay.times}
    reasons = {item.problem: item.why for item in replay.not_replayed}
    rows = []
    for problem, logged in calls.items():
        alone = times.get(problem)
        why = "" if alone else reasons.get(problem, "not in the replay")
        rows.append(ReplayedCalls(problem, logged.count, logged.total_ms, alone, why))
    return rows


def replay_conditions(
    log: OneDnnLog,
    *,
    threads: int | None,
    cpus: str | None,
    console: Console,
) -> Conditions:
    """Return the first rank's threads, cores and memory nodes, within what this process may use.

    The log's facts take precedence over its header, which has threads only; `threads` and `cpus`
    (such as `0-3`) replace both. A line is printed for each difference from the log.

    Raises:
        InputError: `cpus` is no list, or has a CPU that this process may not use.
    """

    def note(text: str) -> None:
        print_line(console, f"note: {text}")

    facts: dict[str, Any] = log.facts[0] if log.facts else {}
    allowed = frozenset(os.sched_getaffinity(0))
    if cpus is not None:
        try:
            chosen = parse_cpu_list(cpus)
        except ValueError as error:
            raise InputError(f"--cpus: {error}") from None
        if not chosen or chosen - allowed:
            usable = format_cpu_list(allowed)
            raise InputError(f"--cpus: {cpus!r}: this process may use {usable}; name some of these")
    else:
        logged = numbers(facts.get("cpus"))
        chosen = logged & allowed
        if logged - allowed:
            instead = format_cpu_list(chosen) or f"any of {format_cpu_list(allowed)}"
            note(f"CPUs {format_cpu_list(logged)} in the log, {instead} used: this process may use "
                 "no others")  # fmt: skip
    available = choose_cores(threads=None, cpus=tuple(chosen)).threads
    wanted = threads or next(iter(log.run_threads), available)
    count = min(wanted, available)
    if count < wanted:
        source = "requested" if threads else "in the log"
        note(f"{wanted} threads {source}, {count} used: this process has no more cores")
    if log.ranks[1:] and cpus is None and facts:
        note(f"the log is of {len(log.ranks)} ranks; problems run again under rank 0's conditions")
    nodes = numbers(facts.get("memory_nodes")) if chosen else ()
    return Conditions(count, tuple(sorted(chosen)), tuple(sorted(nodes)))


def numbers(value: object) -> frozenset[int]:
    """Return CPUs or nodes of a log's facts: `0-3`, or a list; empty if there are none."""
    if isinstance(value, list):
        return frozenset(number for number in value if isinstance(number, int))
    try:
        return parse_cpu_list(value) if isinstance(value, str) else frozenset()
    except ValueError:
        return frozenset()


def mismatches(log: OneDnnLog, replay: Replay) -> list[str]:
    """Return a line for each difference from the log's run, and for other load."""
    lines = []
    if disturbed := disturbance(replay.other_cores):
        lines.append(f"the replay was {disturbed}")
    for name, logged, replayed in (
        ("instruction set", log.instruction_sets, replay.instruction_set),
        ("threads", log.run_threads, replay.conditions.threads),
        ("oneDNN", log.versions, replay.version),
    ):
        if logged and replayed not in logged:
            in_log = " and ".join(map(str, logged))
            lines.append(f"{name}: {in_log} in the log, {replayed or 'unknown'} in the replay")
    return lines


HEIGHT_OF_ONE = re.compile(r"_ih1oh1kh1sh1dh0ph0(?=_iw)")
"""A convolution along a line is one over a picture of height 1; torch makes it so."""
WRITTEN_BY_LIBRARY = ("ws", "scratchpad", "workspace")
WITHOUT_RESULT = ("eltwise", "softmax", "batch_normalization", "layer_normalization", "lrn")
"""Kinds of which some versions log one tensor for data and result."""


class SameWork(NamedTuple):
    """The values that identify the work of a line."""

    kind: str
    direction: str
    shape: str
    types: frozenset[tuple[str, str]]
    fused: tuple[str, ...]
    details: Hashable


def normalize_work(problem: Problem) -> SameWork:
    """Return everything but the layouts (`same_layouts`) and the implementation.

    The library chooses implementations, and their names differ between versions.
    """
    types = set()
    for memory in problem.memories:
        role = normalize_role(memory)
        is_missing_in_some = role == "dst" and problem.kind in WITHOUT_RESULT
        if memory.is_there and role not in WRITTEN_BY_LIBRARY and not is_missing_in_some:
            types.add((role, memory.type))
    fields, algorithm = problem.fields, problem.algorithm
    if problem.kind in ("convolution", "deconvolution"):
        algorithm = "winograd" if "winograd" in algorithm else ""
    # Before oneDNN 3, one tensor held scale and shift (S); now they are two (C and H).
    flags = frozenset(fields.get("flags", "").replace("S", "CH"))
    return SameWork(
        kind=problem.kind,
        direction=problem.direction,
        shape=plain_shape(problem),
        types=frozenset(types),
        fused=(*problem.post_ops, *other_attributes(problem)),
        details=(algorithm, fields.get("axis", ""), fields.get("direction", ""), flags),
    )


def plain_shape(problem: Problem) -> str:
    """Return the shape without what only some versions write."""
    return HEIGHT_OF_ONE.sub("", modern_shape(problem))


def normalize_role(memory: MemoryDescriptor) -> str:
    """Return the tensor's name: `src` for `diff_src`, `data` and `src0`."""
    role = re.sub(r"\d+$", "", memory.role.removeprefix("diff_"))
    return {"data": "src", "bias": "bia"}.get(role, role)


def same_layouts(wanted: Problem, ran: Problem) -> bool:
    """Return whether layouts are equal, ignoring those chosen by the library.

    A reorder is its two layouts, and a product runs along its operands' rows or columns. Of all
    others, channels must be innermost in both or in neither: blocks, and the layout of weights, are
    the library's choice, which differs between versions.
    """
    exact = wanted.kind in ("reorder", "matmul")
    for memory in wanted.memories:
        other = next((other for other in ran.memories if other.role == memory.role), None)
        if other is None or not (memory.is_there and other.is_there):
            continue
        if exact and not same_layout(wanted, memory, other):
            return False
        is_image = normalize_role(memory) in ("src", "dst")
        if not exact and is_image and is_channels_last(memory.tag) != is_channels_last(other.tag):
            return False
    return True


def same_layout(problem: Problem, memory: MemoryDescriptor, other: MemoryDescriptor) -> bool:
    """Return whether two descriptions of a reorder's or product's tensor are one layout.

    The place of a dimension of 1 makes no difference.
    """
    if (memory.kind, memory.strides) != (other.kind, other.strides):
        return False
    if memory.tag == other.tag or not (is_plain(memory.tag) and is_plain(other.tag)):
        return memory.tag == other.tag
    try:
        listed = listed_sizes(plain_shape(problem))
    except ValueError:
        return False
    dims: tuple[int, ...] = ()
    if problem.kind == "reorder":
        dims = listed[0]
    elif memory.role == "dst":
        dims = (*listed[0][:-1], listed[-1][-1])
    elif memory.role in ("src", "wei") and len(listed) > 1:
        dims = listed[("src", "wei").index(memory.role)]
    orders = [
        [place for place in dimension_order(tag) if place >= len(dims) or dims[place] != 1]
        for tag in (memory.tag, other.tag)
    ]
    return bool(dims) and orders[0] == orders[1]


def difference(wanted: Problem, ran: Problem) -> str:
    """Return the reason why the executed work differs from the requested work."""
    wanted_work, work = normalize_work(wanted), normalize_work(ran)
    texts = {
        "shape": f"it as {ran.shape}",
        "types": f"it with {ran.types}",
        "direction": f"it as {ran.direction}",
        "fused": f"it with {' '.join(work.fused) or 'nothing fused'}",
        "details": f"it with {ran.auxiliary or 'no options'}",
    }
    for field_name, text in texts.items():
        if getattr(wanted_work, field_name) != getattr(work, field_name):
            return f"torch ran {text}"
    return f"torch ran it with layouts {ran.layouts}"


POST_OPS = "attr-post-ops:"
IGNORED = ("attr-scratchpad:",)  # Attributes that do not change the work


def other_attributes(problem: Problem) -> tuple[str, ...]:
    """Return all attributes but post-ops (scales, zero points, precision), sorted."""
    others = (word for word in problem.attributes.split() if not word.startswith(POST_OPS))
    return tuple(sorted(word for word in others if not word.startswith(IGNORED)))


def is_plain(tag: str) -> bool:
    """Return whether nothing is blocked: `acdb` is plain, `aBcd16b` is not."""
    return bool(tag) and tag.isalpha() and tag.islower()


def dimension_order(tag: str) -> list[int]:
    """Return dimensions from the outermost to the innermost: `acdb` is [0, 2, 3, 1]."""
    return [ord(letter) - ord("a") for letter in tag]


def is_channels_last(tag: str) -> bool:
    """Return whether the second dimension is the innermost: `acb`, `acdb`, `acdeb`."""
    return tag in ("acb", "acdb", "acdeb")
