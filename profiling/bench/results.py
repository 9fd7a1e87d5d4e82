"""A benchmark, its measurements from the first warm-up to the last profiled run, and findings.

`measure` runs a `Benchmark` and returns `Results`. A `Finding` is a number that the benchmark is
made for, beside its target. `background_load` measures how busy the rest of the machine is.
"""

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self, TypeAlias

from rich.console import Console

from common.console import progress
from launch.pinning import choose_cores
from profiling.bench.variant import STANDARD, Ratio, Run, Variant, Workload, times_as_fast
from profiling.bench.worker_pool import (
    Runner,
    WorkerPool,
    busy_cores,
    run_interleaved,
    runs_alone,
)
from profiling.onednn_log.work import COMPUTING

PHASES = ("data", "forward", "loss", "backward", "optimizer")
"""The phases of a training step, in order."""
CONVOLVING_KERNELS = (
    "weight_gradient", "grouped_", "tile_convolution", "pointwise_", "few_pixels_",
)  # fmt: skip
"""Beginnings of the names that kernels of csrc other than Winograd's have for `own_kernel`."""
PASS_KERNELS = ("masked_sum", "add_relu", "tile_weights_")
PASS_OPERATORS = frozenset(
    f"aten::{name}"
    for name in ("relu_", "clamp_min_", "threshold_backward", "add", "add_", "mul", "mul_", "copy_")
)
"""torch's operators for ReLU, additions, masks and casts, each a pass over memory."""


@dataclass(frozen=True, kw_only=True)
class Primitives:
    """The time of one run, by oneDNN's verbose output and torch's profiler."""

    seconds: float
    by_kind: Mapping[str, float]  # Seconds in each kind of primitive
    winograd_seconds: float = 0.0  # Seconds in Winograd's convolutions, which are ours
    kernel_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds in our other kernels, by name."""

    @property
    def convolving_share(self) -> float:
        """Share of the run inside convolutions and matrix products, oneDNN's and ours."""
        ours = self.winograd_seconds + self.kernel_time(*CONVOLVING_KERNELS)
        return self.onednn_share + ours / self.seconds

    @property
    def onednn_share(self) -> float:
        """Share of the run inside oneDNN's convolutions and matrix products."""
        computing = (s for name, s in self.by_kind.items() if name.split()[0] in COMPUTING)
        return sum(computing) / self.seconds

    def kernel_time(self, *kernels: str) -> float:
        """Return the seconds in our kernels whose names begin with one of these."""
        return sum(s for name, s in self.kernel_seconds.items() if name.startswith(kernels))


class BytesMoved(NamedTuple):
    """The bytes that all calls of an operator in one phase of a run move."""

    phase: str
    operator: str
    calls: int
    read: int
    written: int


@dataclass(frozen=True, kw_only=True)
class Results:
    """Measurements by variant's name; the runs of a round have the same index in every list."""

    workload: Workload
    variants: Sequence[Variant]
    runs: Mapping[str, Sequence[Run]]
    loaded_runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    """Runs of the same rounds while another process kept a core busy, where that was measured."""
    facts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    primitives: Mapping[str, Primitives] = field(default_factory=dict)
    operators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes_moved: Mapping[str, Sequence[BytesMoved]] = field(default_factory=dict)
    """By operator of one run, the largest first; see `profiling.capture.byte_counter`."""
    other_cores: float = 0.0  # See `background_load`

    @property
    def names(self) -> list[str]:
        """Return the names of the variants, in order."""
        return [variant.name for variant in self.variants]

    @property
    def without_counterparts(self) -> Self:
        """Return the results of the variants that are compared with each other."""
        return replace(self, variants=[each for each in self.variants if each.counterpart is None])

    @property
    def torch_versions(self) -> dict[str, str]:
        """Return the version of torch by variant if they differ; else nothing."""
        versions = {variant.name: variant.versions.get("torch", "") for variant in self.variants}
        return versions if len(set(versions.values())) > 1 else {}

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
        """Return the bytes read and written by phase, in the order of a step. [10⁹ bytes]"""
        gigabytes = defaultdict(float, dict.fromkeys(PHASES, 0.0))
        for row in self.bytes_moved.get(name, ()):
            gigabytes[row.phase or "between"] += (row.read + row.written) / 1e9
        return {phase: amount for phase, amount in gigabytes.items() if amount}

    def passes_share(self, name: str) -> float | None:
        """Return the share of a run in ReLU, sums, masks, casts and reorders; None if not timed.

        Such operations fused into a convolution are not counted.
        """
        primitives, operators = self.primitives.get(name), self.operators.get(name)
        if primitives is None or operators is None:
            return None
        # The two parts come from different runs, so shares are added and not seconds.
        ours = primitives.kernel_time(*PASS_KERNELS)
        reorders = primitives.by_kind.get("reorder", 0.0)
        # Keys end in the number of calls, as in `aten::add x12`.
        by_torch = sum(s for key, s in operators.items() if key.rsplit(" x")[0] in PASS_OPERATORS)
        return (ours + reorders) / primitives.seconds + by_torch / sum(operators.values())

    def ratio(self, name: str, other: str) -> Ratio:
        """Return the speed-up of `name` over `other`."""
        return times_as_fast(self.runs[name], self.runs[other])

    def slowdown(self, name: str) -> Ratio:
        """Return the slowdown of a variant's run beside a busy core."""
        return times_as_fast(self.runs[name], self.loaded_runs[name])

    def details(self, name: str) -> dict[str, float]:
        """Return medians of what a variant's recipe returned in its runs."""
        runs = self.runs[name]
        return {key: median(run.details[key] for run in runs) for key in runs[0].details}


@dataclass(frozen=True)
class Finding:
    """One line under a benchmark's table."""

    what: str
    value: float
    shown: str  # The value with its unit, for people
    _: KW_ONLY
    at_least: float | None = None
    at_most: float | None = None  # The target, if there is one

    @property
    def target(self) -> str:
        """Return the target as text; empty without one."""
        kind = "g" if "%" not in self.shown else ".0%"
        if self.at_least is not None:
            return f"at least {self.at_least:{kind}}"
        return f"at most {self.at_most:{kind}}" if self.at_most is not None else ""

    @property
    def is_met(self) -> bool:
        """Whether the value meets its target; true without one."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.at_most is None or self.value <= self.at_most

    @property
    def verdict(self) -> str:
        """Whether the target is met, for people; empty without one."""
        return "" if not self.target else "met" if self.is_met else "missed"


def speed_ups(results: Results, pairs: Iterable[tuple[str, str, float | None]]) -> list[Finding]:
    """Return the speed-up of one variant over another, with its target, for each pair that ran."""
    findings = []
    for name, other, at_least in pairs:
        if name in results.names and other in results.names:
            ratio = results.ratio(name, other)
            shown, what = ratio.shown(" times as fast"), f"{name} against {other}"
            findings.append(Finding(what, ratio.median, shown, at_least=at_least))
    return findings


Benchmarks: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The subcommands of `retinanet profile bench`."""


RECIPES = "profiling.bench.recipes"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One of the subjects of `retinanet profile bench` that compares variants."""

    name: str
    about: str
    variants: Sequence[Variant]
    findings: Callable[[Results], list[Finding]]
    workloads: Sequence[Workload] = (STANDARD,)
    """All combinations of some sizes with some batches: those it runs unless options name others,
    and that targets are given for."""
    files: str | None = None
    """The recipe, if there is one, that writes files for all variants of an image size, which get
    their folder as the option `folder`."""
    rounds: int  # Counted runs of each variant, unless an option changes it
    warm_up: int
    settling: int = 0
    """Runs at the start of every turn that are not counted: what another variant gave back to the
    kernel before disturbs the first one, by 0.1 s where it was gigabytes."""
    of_steps: bool = False
    """Whether its runs are training steps: the time inside oneDNN's primitives and the bytes that
    operators move are measured too, and, if asked for, steps beside a process that keeps one core
    busy or with several numbers of threads."""


@contextmanager
def with_files(
    benchmark: Benchmark,
    variants: Sequence[Variant],
    workload: Workload,
    *,
    print_line: Callable[[str], None],
) -> Iterator[Sequence[Variant]]:
    """Yield the variants with the benchmark's files for an image size, removed at the end.

    Raises:
        WorkerDiedError, InputError: The files cannot be made.
    """
    if benchmark.files is None:
        yield variants
        return
    print_line(f"making files for images of {workload.image_size}×{workload.image_size}")
    with tempfile.TemporaryDirectory(prefix=f"{benchmark.name}-benchmark-") as folder:
        needed = {package for each in variants for package in each.packages}
        kinds = {"onnx": "onnx" in needed, "int8": "nncf" in needed}
        maker = Variant("files", "", benchmark.files, options={"folder": folder, **kinds})
        runs_alone(maker, workload, count=0)
        yield [replace(each, options={**each.options, "folder": folder}) for each in variants]


CEILING = "ceiling"  # The variant that runs single convolutions and a matrix product
CEILING_RECIPE, MACHINE_RECIPE = f"{RECIPES}.{CEILING}", f"{RECIPES}.machine"
LIMITS = (CEILING_RECIPE, MACHINE_RECIPE)
"""Recipes that measure what a step is compared with, and take none."""


def measure(
    benchmark: Benchmark,
    variants: Sequence[Variant],
    workload: Workload,
    rounds: int,
    warm_up: int,
    *,
    console: Console,
    where: bool = False,
    with_load: bool = False,
) -> Results:
    """Measure variants of a benchmark in counted rounds after a warm-up.

    `where` also times torch's operators. With `with_load`, each variant runs again in every round
    while another process keeps a core busy: the first core in the first round, the next one in the
    next, and so on. The first one matters most where main threads are on it.

    Raises:
        WorkerDiedError: A worker ended by itself.
    """
    total = len(variants) * (warm_up + rounds)
    quiet: list[dict[str, Run]] = []
    loaded: list[dict[str, Run]] = []
    with (
        # Entered first and left last: workers count as this process's only after they
        # were waited for.
        background_load() as others,
        WorkerPool(workload, warm_up=warm_up, print_line=console.print) as pool,
        progress(console, f"bench {benchmark.name}, runs", total=total) as advance,
    ):
        settling = 0 if with_load else benchmark.settling
        cpus = choose_cores(threads=None).cpus if with_load else ()
        for runs in run_interleaved(pool, variants, rounds, advance=advance, settling=settling):
            if with_load:
                with busy_cores([cpus[len(quiet) % len(cpus)]]):
                    loaded.append({each.name: pool.worker(each).run() for each in variants})
            quiet.append(runs)

        def answers(question: str, to: Sequence[Variant]) -> dict[str, Any]:
            return {variant.name: pool.worker(variant).ask(question)[question] for variant in to}

        # Last of all: what watches a run also slows it down.
        steps = [each for each in variants if benchmark.of_steps and each.recipe not in LIMITS]
        primitives = {variant.name: profiled(pool.worker(variant)) for variant in steps}
        # The same bytes are moved by any number of threads.
        moved = answers("bytes", [variant for variant in steps if variant.share is None])
        with_operators = [each for each in variants if where and each.recipe != MACHINE_RECIPE]
        operators = answers("operators", with_operators)
    return Results(
        workload=workload,
        variants=variants,
        runs={variant.name: [runs[variant.name] for runs in quiet] for variant in variants},
        loaded_runs={name: [runs[name] for runs in loaded] for name in (loaded or ({},))[0]},
        facts=pool.facts,
        primitives=primitives,
        operators=operators,
        bytes_moved={name: [BytesMoved(*row) for row in rows] for name, rows in moved.items()},
        other_cores=others.cores,
    )


PROFILED_RUNS = 3
PROFILED_SECONDS = 10.0
"""No further run is profiled after so long: a slow variant is not the one of interest."""


def profiled(worker: Runner) -> Primitives:
    """Return the middle one of runs with oneDNN's log, by its share in primitives."""
    runs: list[Primitives] = []
    while sum(run.seconds for run in runs) < PROFILED_SECONDS and len(runs) < PROFILED_RUNS:
        runs.append(Primitives(**worker.ask("primitives")))
    return sorted(runs, key=lambda run: run.convolving_share)[len(runs) // 2]


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
DISTURBING_CORES = 0.1  # A larger load is reported


class OtherLoad:
    """The load of other work; filled in when the measured stretch has ended."""

    cores: float = 0.0
    """Cores that others kept busy, on average; on a virtual machine also what its host took."""


@contextmanager
def background_load() -> Iterator[OtherLoad]:
    """Measure the load of other processes in the context; waited-for children count as ours."""
    load = OtherLoad()
    start, busy_before = time.monotonic(), _busy_by_others()
    yield load
    # Times are rounded to ticks, so the difference can be slightly negative.
    load.cores = max(0.0, _busy_by_others() - busy_before) / (time.monotonic() - start)


def _busy_by_others() -> float:
    """Return all processor time since the machine's start, also stolen by its host, less ours."""
    first_line = Path("/proc/stat").read_text().split("\n", 1)[0]
    # The fields after these are guest times, which `user` and `nice` include.
    user, nice, system, _idle, _wait, interrupts, soft, stolen = map(int, first_line.split()[1:9])
    busy = (user + nice + system + interrupts + soft + stolen) / TICKS_PER_SECOND
    return busy - sum(os.times()[:4])  # of this process, and of children that were waited for


def disturbance(cores: float) -> str:
    """Return a sentence about cores kept busy by other processes; empty if negligible."""
    if cores <= DISTURBING_CORES:
        return ""
    return (
        f"disturbed: other processes kept {cores:.2f} cores busy; times and rates are unreliable, "
        "ratios less precise"
    )
