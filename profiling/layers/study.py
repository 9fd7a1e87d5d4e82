"""A study of a network's layers: configurations in turn, each in a process of its own.

What is timed is a `Subject`; the ways to run it are `Configuration`s, whose iterations are in
`Measured`. This module loads no torch: it is also the worker (`prepare`), which takes cores and
memory first. `profiling.layers.timing` has the worker's questions, and what they do.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, pstdev
from typing import Any

from rich.console import Console

from common.console import progress
from common.errors import InputError
from common.machine import available_mb
from common.processes import Answering, serve
from launch.limits import read_allowance
from launch.pinning import check_cores, choose_cores, take_cores
from profiling.bench.variant import PLAIN_EVERY, Subject, apply_memory, huge_pages_environment
from profiling.bench.worker_pool import SPARE_MB, Worker

MODULE = "profiling.layers.study"
TURN_MS = 10_000.0
"""The length of a turn, about: what disturbs the machine then meets all configurations alike."""
LONGEST_TURN = 10
SETTLING = 1
"""Uncounted iterations at the start of a turn, as another process has used the memory before."""

Report = Callable[[int, str], None]
"""Called with the number of iterations done since the last call, and a note on them."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One of the ways to run the network that are compared."""

    onednn: bool
    """The optimized engine; else torch's operators do without oneDNN, and without ours."""
    threads: int
    """Compute threads, one a core."""
    memory: str | None = None
    """The memory policy, as numactl names it; None leaves it."""
    huge_pages: bool = False
    """Whether the C library asks the kernel for huge pages."""


@dataclass(frozen=True)
class Statistic:
    """A time over all iterations. [milliseconds]"""

    mean: float
    median: float
    deviation: float
    """Standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer, or the loss, or what lies between them."""

    name: str
    type: str
    """The module's class; `loss`, or empty between layers."""
    calls: int
    """Calls in one iteration."""
    trains: bool
    """Whether it has weights that get gradients."""
    forward: Statistic
    backward: Statistic | None
    """None: it has no backward pass, as nothing before it trains."""
    share: float
    """Share of the whole iteration."""
    gflop: float
    """Multiplications and additions of an iteration, both passes. [10⁹]"""
    gflop_per_s: float | None
    """None where no arithmetic is counted."""

    @property
    def total_ms(self) -> float:
        """The average of both passes together."""
        return self.forward.mean + (self.backward.mean if self.backward else 0.0)


@dataclass(kw_only=True)
class Measured:
    """The iterations of one configuration. [milliseconds]"""

    configuration: Configuration
    label: str
    """Its name, by what differs from the others."""
    facts: Mapping[str, Any]
    """See `profiling.layers.timing`."""
    watched: list[dict[str, Any]] = field(default_factory=list)
    """See `profiling.layers.timing`."""
    plain: list[dict[str, float]] = field(default_factory=list)
    warm_ms: float = 0.0
    """The last iteration of the warm-up."""
    peak_mb: float = 0.0
    huge_pages_mb: float = 0.0
    primitives: Mapping[str, float] = field(default_factory=dict)
    """Seconds inside each kind of oneDNN primitive in one iteration."""

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add the worker's answer to a question."""
        self.watched += answer.get("watched", [])
        self.plain += answer.get("plain", [])
        self.warm_ms = answer.get("last_ms", self.warm_ms)
        self.peak_mb = answer["peak_mb"]
        self.huge_pages_mb = answer.get("huge_pages_mb", 0.0)

    def whole(self, work: str) -> Statistic:
        """Return the whole of `forward` or `backward`."""
        return statistic([one[work] for one in self.watched])

    @property
    def total_ms(self) -> float:
        """The average of an iteration."""
        return self.whole("forward").mean + self.whole("backward").mean

    @property
    def plain_ms(self) -> float:
        """The median of unwatched iterations."""
        return median(map(passes_ms, self.plain))

    @property
    def middle_ms(self) -> float:
        """The median of watched iterations; before there are any, the last of the warm-up."""
        return median(map(passes_ms, self.watched)) if self.watched else self.warm_ms

    @property
    def watching_cost(self) -> float:
        """What watching adds to an iteration, each against the unwatched one right after it."""
        pairs = zip(self.watched[::PLAIN_EVERY], self.plain, strict=True)
        return median(passes_ms(watched) / passes_ms(plain) for watched, plain in pairs) - 1

    @property
    def convolving_share(self) -> float:
        """The share of an iteration in convolutions."""
        return sum(layer.share for layer in self.layers() if layer.type in CONVOLUTIONS)

    def layers(self) -> list[Layer]:
        """Return layers by first call, then what lies between them; all add up to the iteration."""
        forward = [rest(one, one["forward"], place=0) for one in self.watched]
        backward = [rest(one, one["backward"], place=1) for one in self.watched]
        between = {"name": BETWEEN, "type": "", "calls": 1, "trains": False}
        return [
            *(self._layer(fact) for fact in self.facts["layers"]),
            self._of_times(between, statistic(forward), statistic(backward), gflop=0.0),
        ]

    def _layer(self, fact: Mapping[str, Any]) -> Layer:
        times = [one["layers"][fact["name"]] for one in self.watched]
        forward = statistic([pair[0] for pair in times])
        has_backward = any(pair[1] is not None for pair in times)
        backward = statistic([pair[1] or 0.0 for pair in times]) if has_backward else None
        gflop = fact["gflop_forward"] + (fact["gflop_backward"] if backward else 0.0)
        return self._of_times(fact, forward, backward, gflop=gflop)

    def _of_times(
        self,
        fact: Mapping[str, Any],
        forward: Statistic,
        backward: Statistic | None,
        *,
        gflop: float,
    ) -> Layer:
        total = forward.mean + (backward.mean if backward else 0.0)
        return Layer(
            name=fact["name"],
            type=fact["type"],
            calls=fact["calls"],
            trains=fact["trains"],
            forward=forward,
            backward=backward,
            share=total / self.total_ms,
            gflop=gflop,
            gflop_per_s=gflop / total * 1000 if gflop else None,
        )

    def nodes(self) -> dict[str, float]:
        """Return milliseconds of backward work between layers, by node of autograd's graph."""
        names = {name for one in self.watched for name in one["nodes"]}
        means = {name: fmean(one["nodes"].get(name, 0.0) for one in self.watched) for name in names}
        return dict(sorted(means.items(), key=lambda item: -item[1]))


def run_study(
    subject: Subject,
    configurations: Sequence[Configuration],
    *,
    iterations: int,
    warm_up: int,
    console: Console,
) -> list[Measured]:
    """Time iterations of each configuration, in turns of as many at once as memory allows.

    Args:
        subject: What is timed.
        configurations: How.
        iterations: Counted iterations of each.
        warm_up: Iterations of each before them.
        console: For progress.

    Raises:
        WorkerDiedError: A worker ended by itself.
        InputError: A configuration asks for what is not here.
    """
    waiting = list(zip(labels(configurations), configurations, strict=True))
    measured: list[Measured] = []
    done, total = 0, len(waiting) * (warm_up + iterations)
    with progress(console, f"layers of {subject.model}, iterations", total=total) as advance:

        def report(count: int, note: str) -> None:
            nonlocal done
            done += count
            advance(done, note)

        while waiting:
            measured += run_group(
                subject,
                waiting,
                iterations=iterations,
                warm_up=warm_up,
                report=report,
                console=console,
            )
    return measured


def run_group(
    subject: Subject,
    waiting: list[tuple[str, Configuration]],
    *,
    iterations: int,
    warm_up: int,
    report: Report,
    console: Console,
) -> list[Measured]:
    """Remove as many from `waiting` as fit into memory together, and time them in turn."""
    with ExitStack() as opened:
        group: list[tuple[Worker, Measured]] = []
        while waiting and fits([measured for _, measured in group]):
            label, configuration = waiting.pop(0)
            report(0, f"{label}: warming up")
            worker = Worker(
                label,
                module=MODULE,
                specification={"subject": asdict(subject), "configuration": asdict(configuration)},
                environment=huge_pages_environment() if configuration.huge_pages else None,
            )
            opened.enter_context(closing(worker))
            measured = Measured(configuration=configuration, label=label, facts=worker.facts)
            measured.add(worker.ask(f"warm-up {warm_up}"))
            report(warm_up, f"{label}: warmed up")
            group.append((worker, measured))
        if waiting:
            later = ", ".join(label for label, _ in waiting)
            console.print(f"memory does not do for all at once: {later} come afterwards")
        run_interleaved(group, iterations=iterations, report=report)
    return [measured for _, measured in group]


def fits(group: Sequence[Measured]) -> bool:
    """Return whether there is memory for one more; for the first there always is."""
    hungriest = max((measured.peak_mb for measured in group), default=None)
    return hungriest is None or available_mb() >= hungriest + SPARE_MB


def run_interleaved(
    group: Sequence[tuple[Worker, Measured]], *, iterations: int, report: Report
) -> None:
    """Run a few iterations of each after the other, until all have theirs; then time oneDNN."""
    done = 0
    while done < iterations:
        slowest = max(measured.middle_ms for _, measured in group)
        turn = max(1, min(LONGEST_TURN, round(TURN_MS / slowest)))
        count = min(iterations - done, turn)
        for worker, measured in group:
            if len(group) > 1:
                worker.ask(f"warm-up {SETTLING}")
            measured.add(worker.ask(f"measure {count}"))
            report(count, f"{measured.label} {measured.middle_ms / 1000:.3g} s")
        done += count
    for worker, measured in group:
        measured.primitives = worker.ask("primitives 1")["seconds"]


BETWEEN = "between layers"
"""The rest of an iteration: sums, activations and reshaping that no module does, and autograd."""
CONVOLUTIONS = ("Conv2d", "Conv3d", "Conv1d", "ConvTranspose2d")


def rest(iteration: Mapping[str, Any], whole: float, *, place: int) -> float:
    """Return the time of a pass that no layer has taken."""
    return whole - sum(pair[place] or 0.0 for pair in iteration["layers"].values())


def passes_ms(iteration: Mapping[str, Any]) -> float:
    """Return the time of both passes."""
    both: float = iteration["forward"] + iteration["backward"]
    return both


def statistic(values: Sequence[float]) -> Statistic:
    """Return the statistic of at least one value."""
    return Statistic(fmean(values), median(values), pstdev(values))


DEFAULT_BATCH = {"retinanet": 2, "alexnet": 64, "resnet50": 16, "resnext50": 16}
"""The networks that can be timed, and images in a batch."""
DEFAULT_SIZE = {"retinanet": 800}
CLASSIFIER_SIZE = 224


def labels(configurations: Sequence[Configuration]) -> list[str]:
    """Return names that tell configurations apart: what is equal for all is left out."""
    parts = {
        "onednn": lambda one: "optimized" if one.onednn else "default",
        "threads": lambda one: f"{one.threads} thread{'s' if one.threads > 1 else ''}",
        "memory": lambda one: f"memory {one.memory or 'as it is'}",
        "huge_pages": lambda one: "huge pages" if one.huge_pages else "small pages",
    }
    differing = [
        name for name in parts if len({getattr(one, name) for one in configurations}) > 1
    ] or ["onednn"]
    return [", ".join(parts[name](one) for name in differing) for one in configurations]


SUCCESS = 0
"""CUDA_SUCCESS of the driver's interface.
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html"""


def require_gpu() -> None:
    """Check for an NVIDIA GPU through its driver; torch would take seconds to load.

    Raises:
        InputError: There is no driver, or it finds no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise InputError(
            "--device: cuda: this machine has no NVIDIA driver (libcuda.so.1); leave it out"
        ) from None
    count = ctypes.c_int(0)
    if driver.cuInit(0) != SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != SUCCESS:
        raise InputError("--device: cuda: the NVIDIA driver finds no GPU here; leave it out")
    if count.value == 0:
        raise InputError("--device: cuda: the NVIDIA driver shows no GPU here; leave it out")


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Take cores and memory, make the network and run it once; return facts and what answers."""
    configuration = Configuration(**specification["configuration"])
    subject = Subject(**specification["subject"])
    if configuration.memory is not None:
        apply_memory(configuration.memory, allowed=read_allowance().memory_nodes)
    take_cores(choose_cores(threads=configuration.threads))
    notes = check_cores(choose_cores(threads=configuration.threads))
    # torch had to wait for the cores.
    from torch.backends import mkldnn  # noqa: PLC0415

    from profiling.layers.timing import (  # noqa: PLC0415
        Recorder,
        answers_on,
        clock_of,
        facts_of,
        timed_model,
        watched_iteration,
    )

    clock = clock_of(subject.device)
    if not configuration.onednn:
        mkldnn.set_flags(_enabled=False)
    timed = timed_model(subject, onednn=configuration.onednn)
    recorder = Recorder(timed.network, clock)
    layers = list(watched_iteration(timed, recorder)["layers"])
    facts = facts_of(subject, timed, layers, recorder, notes=notes)
    return facts, answers_on(timed, recorder)


if __name__ == "__main__":
    serve(prepare)
