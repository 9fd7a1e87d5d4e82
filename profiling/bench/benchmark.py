"""What can be benchmarked: by whom, and what for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.bench.contestant import Contestant
from profiling.bench.finding import Finding
from profiling.bench.results import Results

RECIPES = "profiling.bench.recipes"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One of the subjects of `python -m profiling bench`."""

    name: str
    about: str
    contestants: Sequence[Contestant]
    findings: Callable[[Results], list[Finding]]
    rounds: int
    """Counted runs of each contestant, unless told otherwise."""
    warm_up: int
    """Runs of each before them."""
    settling: int = 0
    """Runs at the start of every turn that are not counted: what another contestant gave back to
    the kernel before disturbs the first one, by 0.1 s where it was gigabytes."""
    uses_onednn: bool = False
    """Whether time inside oneDNN's primitives says something."""
    counts_bytes: bool = False
    """Whether the bytes that its operators move are counted, in a run of its own."""
    beside_load: bool = False
    """Whether it can also be measured beside a process that keeps one core busy."""
