"""Everything that one benchmark measured, and the numbers that are made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from profiling.bench.contestant import Contestant
from profiling.bench.run import Ratio, Run, times_as_fast
from profiling.bench.workload import Workload
from profiling.onednn_log.problem import COMPUTING


@dataclass(frozen=True, kw_only=True)
class Primitives:
    """One run as oneDNN's verbose output and torch's profiler saw it."""

    seconds: float
    """Of the whole run."""
    by_kind: Mapping[str, float]
    """Seconds in each kind of primitive."""
    winograd_seconds: float = 0.0
    """Seconds in our own convolutions."""

    @property
    def convolving_share(self) -> float:
        """Share of the run inside convolutions and matrix products, oneDNN's and ours."""
        return self.onednn_share + self.winograd_seconds / self.seconds

    @property
    def onednn_share(self) -> float:
        """Share of the run inside oneDNN's convolutions and matrix products."""
        return (
            sum(s for name, s in self.by_kind.items() if name.split(maxsplit=1)[0] in COMPUTING)
            / self.seconds
        )


@dataclass(frozen=True, kw_only=True)
class Results:
    """By contestant's name; the runs of a round stand at the same place of every list."""

    workload: Workload
    contestants: Sequence[Contestant]
    runs: Mapping[str, Sequence[Run]]
    facts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    primitives: Mapping[str, Primitives] = field(default_factory=dict)
    operators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    other_cores: float = 0.0
    """Cores that other work kept busy meanwhile."""

    @property
    def names(self) -> list[str]:
        """Of the contestants, in order."""
        return [contestant.name for contestant in self.contestants]

    def seconds(self, name: str) -> float:
        """Median of a contestant's runs."""
        return median(run.seconds for run in self.runs[name])

    def page_faults(self, name: str) -> float:
        """Median of a run's page faults."""
        return median(run.page_faults for run in self.runs[name])

    def peak_mb(self, name: str) -> float:
        """Largest resident memory of a contestant's process. [MB]"""
        return max(run.peak_rss_mb for run in self.runs[name])

    def ratio(self, name: str, other: str) -> Ratio:
        """How many times as fast `name` is as `other`."""
        return times_as_fast(self.runs[name], self.runs[other])

    def details(self, name: str) -> dict[str, float]:
        """Medians of what a contestant's recipe kept of its runs."""
        runs = self.runs[name]
        return {key: median(run.details[key] for run in runs) for key in runs[0].details}
