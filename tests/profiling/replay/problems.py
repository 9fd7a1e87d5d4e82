"""Problems from lines of oneDNN logs, and the program that runs them."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from profiling.onednn_log.log import Calls
from profiling.onednn_log.parse import parse_head, split_head
from profiling.onednn_log.work import MemoryDescriptor, Problem

BENCHDNN = Path(shutil.which("benchdnn") or "/none")
needs_benchdnn = pytest.mark.skipif(
    not BENCHDNN.exists(), reason="no benchdnn on PATH; docs/profiling.md describes how to build it"
)


def parse_problem(line: str) -> Problem:
    """Return a problem from a line of any version, without `onednn_verbose,` and its time."""
    problem = parse_head(split_head(f"{line},0.5")).problem
    assert problem is not None
    return problem


def parse_v3(line: str) -> Problem:
    """Return a problem as oneDNN 3 writes it, from `cpu,` on."""
    return parse_problem(f"v1,primitive,exec,{line}")


def problem(
    kind: str, shape: str, *types: str, auxiliary: str = "", direction: str = "undef"
) -> Problem:
    """Return a problem; `types` such as `src:f32`."""
    memories = tuple(MemoryDescriptor(*text.split(":")) for text in types)
    return Problem("primitive", "cpu", kind, "any", direction, memories, "", auxiliary, shape)


def make_calls(*milliseconds: float) -> Calls:
    """Return calls of these lengths."""
    calls = Calls()
    for each in milliseconds:
        calls.add(each)
    return calls


def by_kind(problems: Iterable[Problem], *kinds: str) -> list[Problem]:
    """Return the problems of these kinds."""
    return [problem for problem in problems if problem.kind in kinds]
