"""One run of a contestant, and what many of them say together."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a worker measured around one run."""

    seconds: float
    page_faults: int
    """Pages that the kernel had to hand to the process meanwhile, without reading a disk."""
    rss_mb: float
    """Resident memory afterwards. [MB, 10⁶ bytes]"""
    peak_rss_mb: float
    """Largest resident memory of the process since its start. [MB]"""
    details: dict[str, float]
    """What the recipe kept of it."""


class Ratio(NamedTuple):
    """How many times as fast one contestant is as another."""

    median: float
    lowest: float
    highest: float


def times_as_fast(runs: Sequence[Run], others: Sequence[Run]) -> Ratio:
    """Compare round by round, so that a disturbance of the machine meets both sides."""
    ratios = [other.seconds / run.seconds for run, other in zip(runs, others, strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))
