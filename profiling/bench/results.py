"""A benchmark, its measurements from the first warm-up to the last profiled run, and findings.

`measure` runs a `Benchmark` and returns `Results`. A `Finding` is a number that the benchmark is
made for, beside its target. `background_load` watches how busy the rest of the machine is.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console

from common.cli import positive
from common.console import progress
from launch.pinning import choose_cores
from profiling.bench.variant import Ratio, Run, Variant, Workload, times_as_fast
from profiling.bench.worker_pool import (
    Runner,
    WorkerPool,
    beside_load,
    run_interleaved,
    runs_by_name,
)
from profiling.onednn_log.work import COMPUTING

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
    """Measurements by variant's name; the runs of a round stand at the same place of every list."""

    workload: Workload
    variants: Sequence[Variant]
    runs: Mapping[str, Sequence[Run]]
    loaded_runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    """Runs of the same rounds while another process kept a core busy, where that was asked for."""
    facts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    primitives: Mapping[str, Primitives] = field(default_factory=dict)
    operators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes_moved: Mapping[str, Sequence[BytesMoved]] = field(default_factory=dict)
    """Of the operators of one run, the largest first; see `profiling.capture.byte_counter`."""
    other_cores: float = 0.0
    """Cores that other work kept busy meanwhile."""

    @property
    def names(self) -> list[str]:
        """Return the names of the variants, in order."""
        return [variant.name for variant in self.variants]

    def seconds(self, name: str) -> float:
        """Return the median of a variant's runs."""
        return median(run.seconds for run in self.runs[name])

    def page_faults(self, name: str) -> float:
        """Return the median of a run's page faults."""
        return median(run.page_faults for run in self.runs[name])

    def peak_mb(self, name: str) -> float:
        """Return the largest resident memory of a variant's process. [MB]"""
        return max(run.peak_rss_mb for run in self.runs[name])

    def gigabytes(self, name: str) -> float | None:
        """Return the bytes that a run reads and writes, None if not counted. [10⁹ bytes]"""
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
        """Return the share of a run in ReLU, sums, masks, casts and reorders; None if not timed.

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
        """Return how many times as fast `name` is as `other`."""
        return times_as_fast(self.runs[name], self.runs[other])

    def slowdown(self, name: str) -> Ratio:
        """Return how many times as long a variant's run is beside a busy core as without."""
        return times_as_fast(self.runs[name], self.loaded_runs[name])

    def details(self, name: str) -> dict[str, float]:
        """Return medians of what a variant's recipe kept of its runs."""
        runs = self.runs[name]
        return {key: median(run.details[key] for run in runs) for key in runs[0].details}


@dataclass(frozen=True)
class Finding:
    """One line under a benchmark's table."""

    what: str
    value: float
    shown: str
    """The value with its unit, as a person reads it."""
    _: KW_ONLY
    at_least: float | None = None
    at_most: float | None = None
    """The target, if there is one."""

    @property
    def target(self) -> str:
        """Return the target in words; empty where there is none."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return ""

    @property
    def is_met(self) -> bool:
        """Whether the value meets its target; true where there is none."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.at_most is None or self.value <= self.at_most


def speed_up(
    results: Results, name: str, other: str, *, at_least: float | None = None
) -> list[Finding]:
    """Return how many times as fast a variant is as another; nothing if one did not run."""
    if name not in results.names or other not in results.names:
        return []
    ratio = results.ratio(name, other)
    return [
        Finding(
            f"{name} against {other}",
            ratio.median,
            f"{ratio.median:.2f} times as fast ({ratio.lowest:.2f}–{ratio.highest:.2f})",
            at_least=at_least,
        )
    ]


def add_counts(
    parser: argparse.ArgumentParser,
    *options: tuple[str, int, str],
    kind: Callable[[str], int] = positive,
) -> None:
    """Add options that take a number, positive unless `kind` says more: name, default, meaning."""
    for name, default, what in options:
        help_text = f"{what} (default: {default:,})"
        parser.add_argument(name, type=kind, default=default, metavar="N", help=help_text)


RECIPES = "profiling.bench.recipes"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One of the subjects of `python -m profiling bench`."""

    name: str
    about: str
    variants: Sequence[Variant]
    findings: Callable[[Results], list[Finding]]
    rounds: int
    """Counted runs of each variant, unless an option says otherwise."""
    warm_up: int
    """Runs of each before them."""
    settling: int = 0
    """Runs at the start of every turn that are not counted: what another variant gave back to the
    kernel before disturbs the first one, by 0.1 s where it was gigabytes."""
    uses_onednn: bool = False
    """Whether time inside oneDNN's primitives says something."""
    counts_bytes: bool = False
    """Whether the bytes that its operators move are counted, in a run of its own."""
    beside_load: bool = False
    """Whether it can also be measured beside a process that keeps one core busy."""


CEILING = "ceiling"
"""The variant that runs single convolutions and a matrix product."""

PROFILED_RUNS = 3
PROFILED_SECONDS = 10.0
"""No further run is profiled after so long: a slow variant is not the one of interest."""


def measure(
    benchmark: Benchmark,
    variants: Sequence[Variant],
    workload: Workload,
    *,
    rounds: int,
    warm_up: int,
    where: bool,
    with_load: bool = False,
    console: Console,
) -> Results:
    """Measure everything of a benchmark.

    Args:
        benchmark: What is compared.
        variants: Those that run.
        workload: What each is given.
        rounds: Counted runs of each.
        warm_up: Runs of each that are not counted.
        where: Whether to time torch's operators too.
        with_load: Whether each also runs while another process keeps one of the cores busy.
        console: Where progress is shown.

    Raises:
        WorkerDiedError: A worker ended by itself.
    """
    total = len(variants) * (warm_up + rounds)
    with (
        background_load() as others,
        WorkerPool(workload, warm_up=warm_up, say=console.print) as pool,
        progress(console, f"bench {benchmark.name}, runs", total=total) as advance,
    ):
        settling = 0 if with_load else benchmark.settling
        quiet = run_interleaved(pool, variants, rounds=rounds, advance=advance, settling=settling)
        loaded: list[dict[str, Run]] = []
        if with_load:
            cpus = choose_cores(threads=None).cpus
            pairs = list(beside_load(pool, variants, quiet, cpus=cpus))
            runs, loaded = runs_by_name(pair[0] for pair in pairs), [pair[1] for pair in pairs]
        else:
            runs = runs_by_name(quiet)
        # Last of all: what watches a run also slows it down.
        convolving = [one for one in variants if benchmark.uses_onednn and one.name != CEILING]
        primitives = {one.name: profiled(pool.worker(one)) for one in convolving}
        counted = convolving if benchmark.counts_bytes else []
        moved = {one.name: pool.worker(one).ask("bytes")["bytes"] for one in counted}
        watched = variants if where else []
        operators = {one.name: pool.worker(one).ask("operators")["operators"] for one in watched}
    return Results(
        workload=workload,
        variants=variants,
        runs=runs,
        loaded_runs=runs_by_name(loaded),
        facts=pool.facts,
        primitives=primitives,
        operators=operators,
        bytes_moved={name: [BytesMoved(*row) for row in rows] for name, rows in moved.items()},
        other_cores=others.cores,
    )


def profiled(worker: Runner) -> Primitives:
    """Return the middle one of runs with oneDNN's log, by its share in primitives."""
    runs: list[Primitives] = []
    while sum(run.seconds for run in runs) < PROFILED_SECONDS and len(runs) < PROFILED_RUNS:
        answer = worker.ask("primitives")
        runs.append(
            Primitives(
                seconds=answer["seconds"],
                by_kind=answer["primitives"],
                winograd_seconds=answer["winograd"],
                kernel_seconds=answer["kernels"],
            )
        )
    return sorted(runs, key=lambda run: run.convolving_share)[len(runs) // 2]


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
DISTURBING_CORES = 0.1
"""More than this is reported."""


class OtherLoad:
    """Filled in when the measured stretch has ended."""

    cores: float = 0.0
    """Cores that others kept busy, on average; on a virtual machine also what its host took."""


@contextmanager
def background_load() -> Iterator[OtherLoad]:
    """Measure while the context lasts; child processes count as ours once they were waited for."""
    load = OtherLoad()
    start, busy, own = time.monotonic(), _busy_seconds(), _own_seconds()
    yield load
    busy, own = _busy_seconds() - busy, _own_seconds() - own
    load.cores = max(0.0, busy - own) / (time.monotonic() - start)


def disturbance(cores: float) -> str:
    """Return a sentence about cores that other work kept busy; empty if it does not matter."""
    if cores <= DISTURBING_CORES:
        return ""
    return (
        f"disturbed: other work kept {cores:.2f} cores busy meanwhile; "
        "times and rates mean little, ratios less than they could"
    )


def _busy_seconds() -> float:
    """Return all processor time since the machine's start, and what its host stole."""
    first_line = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, _idle, _wait, interrupts, soft, stolen = map(int, first_line.split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / TICKS_PER_SECOND


def _own_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)
