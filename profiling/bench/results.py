"""Everything that one benchmark measured, and the numbers that are made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from profiling.bench.contestant import Contestant
from profiling.bench.run import Ratio, Run, times_as_fast
from profiling.bench.workload import Workload
from profiling.onednn_log.problem import COMPUTING

PHASES = ("data", "forward", "loss", "backward", "optimizer")
"""Of a training step, in order."""


CONVOLVING_KERNELS = ("weight_gradient", "grouped_", "tile_convolution", "pointwise_")
"""Beginnings of the names that kernels of csrc other than Winograd's have for `own_kernel`."""

PASS_KERNELS = ("masked_sum", "add_relu", "tile_weights_pack")
PASS_OPERATORS = (
    "aten::relu_",
    "aten::clamp_min_",
    "aten::threshold_backward",
    "aten::add",
    "aten::add_",
    "aten::mul",
    "aten::mul_",
    "aten::copy_",
)
"""What computes ReLU, sums, masks and casts of maps and weights, each a pass over memory."""


@dataclass(frozen=True, kw_only=True)
class Primitives:
    """One run as oneDNN's verbose output and torch's profiler saw it."""

    seconds: float
    """Of the whole run."""
    by_kind: Mapping[str, float]
    """Seconds in each kind of primitive."""
    winograd_seconds: float = 0.0
    """Seconds in Winograd's convolutions, which are ours."""
    kernel_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds in our other kernels, by name."""

    @property
    def convolving_share(self) -> float:
        """Share of the run inside convolutions and matrix products, oneDNN's and ours."""
        own = self.winograd_seconds + self.seconds_of(*CONVOLVING_KERNELS)
        return self.onednn_share + own / self.seconds

    def seconds_of(self, *kernels: str) -> float:
        """Seconds in our kernels whose names begin with one of these."""
        return sum(s for name, s in self.kernel_seconds.items() if name.startswith(kernels))

    @property
    def onednn_share(self) -> float:
        """Share of the run inside oneDNN's convolutions and matrix products."""
        return (
            sum(s for name, s in self.by_kind.items() if name.split(maxsplit=1)[0] in COMPUTING)
            / self.seconds
        )


class BytesMoved(NamedTuple):
    """The bytes that all calls of an operator in one phase of a run move."""

    phase: str
    operator: str
    calls: int
    read: int
    written: int


@dataclass(frozen=True, kw_only=True)
class Results:
    """By contestant's name; the runs of a round stand at the same place of every list."""

    workload: Workload
    contestants: Sequence[Contestant]
    runs: Mapping[str, Sequence[Run]]
    loaded_runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    """Runs of the same rounds while another process kept a core busy, where that was asked for."""
    facts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    primitives: Mapping[str, Primitives] = field(default_factory=dict)
    operators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes_moved: Mapping[str, Sequence[BytesMoved]] = field(default_factory=dict)
    """What the operators of one run read and write, the largest first; see profiling.byte_counter.
    """
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

    def gigabytes(self, name: str) -> float | None:
        """Bytes that a contestant's run reads and writes, None if not counted. [10⁹ bytes]"""
        rows = self.bytes_moved.get(name)
        return sum(row.read + row.written for row in rows) / 1e9 if rows is not None else None

    def gigabytes_by_phase(self, name: str) -> dict[str, float]:
        """Return the same by phase, in the order of a step where that is known. [10⁹ bytes]"""
        found = dict.fromkeys(PHASES, 0.0)
        for row in self.bytes_moved.get(name, ()):
            phase = row.phase or "between"
            found[phase] = found.get(phase, 0.0) + (row.read + row.written) / 1e9
        return {phase: gigabytes for phase, gigabytes in found.items() if gigabytes}

    def passes_share(self, name: str) -> float | None:
        """Share of a run in ReLU, sums, masks, casts and reorders; None without operators' times.

        What a convolution does of it as it writes its result is not counted.
        """
        primitives, operators = self.primitives.get(name), self.operators.get(name)
        if primitives is None or operators is None:
            return None
        own = primitives.seconds_of(*PASS_KERNELS)
        reorders = primitives.by_kind.get("reorder", 0.0)
        by_torch = sum(s for key, s in operators.items() if key.rsplit(" x")[0] in PASS_OPERATORS)
        return (own + reorders) / primitives.seconds + by_torch / sum(operators.values())

    def ratio(self, name: str, other: str) -> Ratio:
        """How many times as fast `name` is as `other`."""
        return times_as_fast(self.runs[name], self.runs[other])

    def slowdown(self, name: str) -> Ratio:
        """Return how many times as long a contestant's run is beside a busy core as without."""
        return times_as_fast(self.runs[name], self.loaded_runs[name])

    def details(self, name: str) -> dict[str, float]:
        """Medians of what a contestant's recipe kept of its runs."""
        runs = self.runs[name]
        return {key: median(run.details[key] for run in runs) for key in runs[0].details}
