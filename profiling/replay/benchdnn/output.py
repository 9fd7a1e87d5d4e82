"""What benchdnn prints, read back: times of each run from oneDNN's log among its own lines."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from profiling.onednn_log.drivers import DRIVERS
from profiling.onednn_log.line import MARKER, Head, head_of, meaning_of, milliseconds
from profiling.onednn_log.problem import Problem

SIGN = "profilednn"
TEMPLATE = f"--perf-template={SIGN},%-time%,%0time%,%prb%"
"""benchdnn's line after it has measured a problem. It knows a least and a mean time and no median,
so the times are taken from oneDNN's log, which has each run: the same clock as in the log that is
replayed."""

KINDS = {driver: kind for kind, driver in DRIVERS.items()}
"""What a log calls a driver's primitives, where the two differ."""

STATE = re.compile(r"\d+:([A-Z_]+)(?: \((.*?)\))?(?: \(.*\))? __REPRO: ")
UNREMARKABLE = ("EXECUTED", "PASSED", "LISTED", "INITIALIZED")


@dataclass(frozen=True, slots=True)
class Timed:
    """One problem measured once: several runs, one after the other."""

    problem: Problem
    """As oneDNN's log tells it."""
    milliseconds: tuple[float, ...]


def read_timed(output: Path, *, driver: str, runs: int) -> list[Timed]:
    """What was measured, in order.

    benchdnn fills tensors with other primitives and runs a problem once before it measures. The
    runs that count are those right before the line of its template.

    Args:
        output: What benchdnn printed.
        driver: That it was started with.
        runs: That it was told to measure.

    Raises:
        ValueError: The log's last lines before a template's are not `runs` of one problem of the
            driver's kind.
    """
    timed: list[Timed] = []
    heads: list[Head] = []
    is_refused = False
    for line in lines_of(output):
        found = MARKER.match(line)
        if found:
            head = head_of(line[found.end() :])
            if head.text.startswith(("exec,", "primitive,exec,")):
                heads.append(head)
        elif refused_in(line):
            is_refused = True
        elif line.startswith(f"{SIGN},"):
            if not is_refused:  # a refused problem gets its line too, with zeros
                timed.append(last_runs(heads, driver=driver, runs=runs))
            heads, is_refused = [], False
    return timed


def last_runs(heads: list[Head], *, driver: str, runs: int) -> Timed:
    """The last of what was logged, as one problem's runs.

    Raises:
        ValueError: They are not.
    """
    counted = heads[-runs:]
    texts = {head.text for head in counted}
    if len(counted) < runs or len(texts) != 1:
        raise ValueError(f"its log does not show {runs} runs of one problem")
    problem = meaning_of(counted[0]).problem
    assert problem is not None
    kind = KINDS.get(driver, driver)
    if problem.kind.removesuffix("_v2") != kind and problem.kind != f"log{kind}":
        raise ValueError(f"its log shows {problem.kind} where {kind} was asked for")
    return Timed(problem, tuple(milliseconds(head.time) for head in counted))


def refusal(output: Path) -> str | None:
    """benchdnn's word on a problem that it did not run: `UNIMPLEMENTED`, `SKIPPED (…)` …"""
    words = (refused_in(line) for line in lines_of(output))
    return next((f"benchdnn: {word}" for word in words if word), None)


def refused_in(line: str) -> str:
    """The word of a line that tells of a problem which did not run; empty for other lines."""
    found = STATE.match(line)
    if not found or found[1] in UNREMARKABLE:
        return ""
    return found[1] + (f" ({found[2]})" if found[2] else "")


def lines_of(output: Path) -> Iterable[str]:
    """Lines without their ends."""
    with output.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            yield line.rstrip("\n")
