"""What is run how often, and about how long that takes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from profiling.onednn_log.log import Calls
from profiling.onednn_log.problem import Problem
from profiling.onednn_log.work import gbyte
from profiling.replay.problem_files.problem_line import ProblemLine

LONGEST_MS = 2_000.0
"""That the runs of a problem may take, as far as its time in the log tells."""

FEWEST_RUNS = 3

LEAST_COLD_GB = 32_768 / 1e9
"""Tensors below this are not run cold: to fill the caches three times over, as benchdnn does, it
would prepare so many copies of them that it takes minutes and gigabytes."""

START_SECONDS = 0.3
"""That a process takes beside the runs, about."""


def told_alike(lines: Mapping[Problem, ProblemLine]) -> list[list[Problem]]:
    """Problems for which benchdnn is told the same, together; in the order of the first."""
    alike: dict[tuple[str, str], list[Problem]] = defaultdict(list)
    for problem, line in lines.items():
        alike[line.driver, line.text].append(problem)
    return list(alike.values())


def longest_ms(problems: Sequence[Problem], calls: Mapping[Problem, Calls]) -> float:
    """What a run will take, as far as the log tells."""
    return max(calls[problem].mean_ms for problem in problems)


def runs_that_count(mean_ms: float, repeats: int) -> int:
    """As many as are asked for, fewer where they would take long."""
    return max(min(repeats, FEWEST_RUNS), min(repeats, int(LONGEST_MS / max(mean_ms, 1e-6))))


def expected_seconds(
    lines: Mapping[Problem, ProblemLine],
    calls: Mapping[Problem, Calls],
    *,
    repeats: int,
    cold: bool,
) -> list[float]:
    """What `run_lines` will take about for each problem, in its order."""
    expected = []
    for problems in told_alike(lines):
        mean_ms = longest_ms(problems, calls)
        runs = (1 + runs_that_count(mean_ms, repeats)) * (2 if cold else 1)
        expected.append(START_SECONDS + runs * mean_ms / 1000)
    return expected


def is_worth_cold(problem: Problem) -> bool:
    """Whether its tensors are large enough; where their size is not known, they are."""
    size = gbyte(problem)
    return size is None or size >= LEAST_COLD_GB
