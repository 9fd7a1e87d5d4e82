"""A study of a network's layers: configurations run in turn, each in a separate process.

A `Subject` is timed in several `Configuration`s, whose iterations are in `Measured`. This module
loads no torch: it is also the worker (`prepare`), which sets cores and memory first.
`profiling.layers.timing` handles the worker's requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean, median, pstdev
from typing import Any

from rich.console import Console

from common.console import progress
from common.processes import Answering, serve
from common.wording import counted
from launch.limits import read_allowance
from launch.pinning import check_cores, choose_cores, take_cores
from profiling.bench.variant import (
    PLAIN_EVERY,
    Subject,
    Variant,
    Workload,
    apply_memory,
    huge_pages_environment,
)
from profiling.bench.worker_pool import Worker, WorkerPool

MODULE = "profiling.layers.study"
DEFAULT_BATCH = {"retinanet": 2, "alexnet": 64, "resnet50": 16, "resnext50": 16}
"""The networks that can be timed, and images in a batch."""
DEFAULT_SIZE = {"retinanet": 800}
CLASSIFIER_SIZE = 224
TURN_MS = 10_000.0
"""The length of a turn, about: what disturbs the machine then affects all configurations alike."""
LONGEST_TURN = 10
BETWEEN = "between layers"
"""The rest of an iteration: sums, activations and reshaping that no module does, and autograd."""
CONVOLUTIONS = ("Conv2d", "Conv3d", "Conv1d", "ConvTranspose2d")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One of the ways to run the network that are compared."""

    onednn: (
        bool  # The optimized engine; else torch's operators without oneDNN and without our kernels
    )
    threads: int  # Compute threads, one a core
    memory: str | None = None  # The memory policy, as numactl names it; None leaves it
    huge_pages: bool = False  # Whether the C library requests huge pages from the kernel


@dataclass(frozen=True)
class Statistic:
    """Mean, median and standard deviation over all iterations. [milliseconds]"""

    mean: float
    median: float
    deviation: float


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer, the loss, or the time between layers."""

    name: str
    type: str  # The module's class; `loss`, or empty between layers
    calls: int  # In one iteration
    trains: bool  # Whether it has weights that get gradients
    forward: Statistic
    backward: Statistic | None  # None: it has no backward pass, as nothing before it trains
    share: float  # Share of the whole iteration
    gflop: float  # Multiplications and additions of an iteration, both passes. [10⁹]
    gflop_per_s: float | None  # None where no arithmetic is counted

    @property
    def total_ms(self) -> float:
        """The mean time of both passes. [ms]"""
        return self.forward.mean + (self.backward.mean if self.backward else 0.0)


@dataclass(kw_only=True)
class Measured:
    """The iterations of one configuration. [milliseconds]

    `facts`, `watched` and `plain` are described in `profiling.layers.timing`.
    """

    configuration: Configuration
    label: str  # Its name, by what differs from the others
    facts: Mapping[str, Any]
    watched: list[dict[str, Any]] = field(default_factory=list)
    plain: list[dict[str, float]] = field(default_factory=list)
    peak_mb: float = 0.0
    huge_pages_mb: float = 0.0
    primitives: Mapping[str, float] = field(default_factory=dict)
    """Seconds inside each kind of oneDNN primitive in one iteration."""

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add a response of the worker."""
        self.watched += answer["watched"]
        self.plain += answer["plain"]
        self.peak_mb = answer["peak_mb"]
        self.huge_pages_mb = answer["huge_pages_mb"]

    def whole(self, work: str) -> Statistic:
        """Return the statistic of the complete `forward` or `backward` pass."""
        return statistic([iteration[work] for iteration in self.watched])

    @property
    def total_ms(self) -> float:
        """The mean time of an iteration. [ms]"""
        return self.whole("forward").mean + self.whole("backward").mean

    @property
    def plain_ms(self) -> float:
        """The median of iterations without hooks. [ms]"""
        return median(map(passes_ms, self.plain))

    @property
    def middle_ms(self) -> float:
        """The median of iterations with hooks. [ms]"""
        return median(map(passes_ms, self.watched))

    @property
    def watching_cost(self) -> float:
        """The overhead of the hooks, relative to the following iteration without hooks."""
        # The worker runs an iteration without hooks after each of these.
        pairs = zip(self.watched[::PLAIN_EVERY], self.plain, strict=True)
        return median(passes_ms(watched) / passes_ms(plain) for watched, plain in pairs) - 1

    @property
    def convolving_share(self) -> float:
        """The share of an iteration in convolutions."""
        return sum(layer.share for layer in self.layers() if layer.type in CONVOLUTIONS)

    def layers(self) -> list[Layer]:
        """Return layers by first call, then the time between them; the sum is the iteration."""
        times = {
            fact["name"]: [iteration["layers"][fact["name"]] for iteration in self.watched]
            for fact in self.facts["layers"]
        }
        times[BETWEEN] = [
            [
                # The remaining time, so that the rows add up to the iteration exactly.
                iteration[work] - sum(pair[place] or 0.0 for pair in iteration["layers"].values())
                for place, work in enumerate(("forward", "backward"))
            ]
            for iteration in self.watched
        ]
        between = {"name": BETWEEN, "type": "", "calls": 1, "trains": False}
        facts = [*self.facts["layers"], {**between, "gflop_forward": 0.0, "gflop_backward": 0.0}]
        return [make_layer(fact, times[fact["name"]], iteration_ms=self.total_ms) for fact in facts]

    def nodes(self) -> dict[str, float]:
        """Return milliseconds of backward work between layers, by node of autograd's graph."""
        nodes = [iteration["nodes"] for iteration in self.watched]
        names = {name for by_name in nodes for name in by_name}
        means = {name: fmean(by_name.get(name, 0.0) for by_name in nodes) for name in names}
        return dict(sorted(means.items(), key=lambda item: -item[1]))


def make_layer(
    fact: Mapping[str, Any], times: Sequence[Sequence[float | None]], *, iteration_ms: float
) -> Layer:
    """Return a layer from its facts and [forward, backward] of every iteration."""
    forward = statistic([pair[0] or 0.0 for pair in times])
    backward = None
    if any(pair[1] is not None for pair in times):
        backward = statistic([pair[1] or 0.0 for pair in times])
    total = forward.mean + (backward.mean if backward else 0.0)
    gflop = fact["gflop_forward"] + (fact["gflop_backward"] if backward else 0.0)
    return Layer(
        name=fact["name"],
        type=fact["type"],
        calls=fact["calls"],
        trains=fact["trains"],
        forward=forward,
        backward=backward,
        share=total / iteration_ms,
        gflop=gflop,
        gflop_per_s=gflop / total * 1000 if gflop else None,
    )


def passes_ms(iteration: Mapping[str, Any]) -> float:
    """Return the time of both passes."""
    return float(iteration["forward"] + iteration["backward"])


def statistic(values: Sequence[float]) -> Statistic:
    """Return mean, median and standard deviation of at least one value."""
    return Statistic(fmean(values), median(values), pstdev(values))


def run_study(
    subject: Subject,
    configurations: Sequence[Configuration],
    iterations: int,
    warm_up: int,
    console: Console,
) -> list[Measured]:
    """Time iterations of all configurations in turn, then oneDNN's primitives in one of each.

    Raises:
        WorkerDiedError: A worker ended by itself.
        InputError: A configuration needs something that is not here.
    """
    named = dict(zip(labels(configurations), configurations, strict=True))
    variants = [Variant(label, "", MODULE) for label in named]
    measured: list[Measured] = []
    start_worker = partial(start, subject, named)
    total = len(named) * (warm_up + iterations)
    with (
        WorkerPool(
            Workload(), warm_up=warm_up, print_line=console.print, start=start_worker
        ) as pool,
        progress(console, f"layers of {subject.model}, iterations", total=total) as advance,
    ):
        finished = done = 0
        for variant in variants:
            advance(finished, f"{variant.name}: warming up")
            facts = pool.worker(variant).facts
            finished += warm_up
            configuration = named[variant.name]
            measured.append(Measured(configuration=configuration, label=variant.name, facts=facts))
        while done < iterations:
            # All run equally many iterations in a turn, about 10 s of the slowest.
            slowest = max((result.middle_ms for result in measured if done), default=TURN_MS)
            turn = max(1, min(LONGEST_TURN, round(TURN_MS / slowest)))
            count = min(iterations - done, turn)
            for variant, result in zip(variants, measured, strict=True):
                worker = pool.worker(variant)
                if len(variants) > 1:
                    worker.run()  # does not count: another process has used the memory before
                result.add(worker.ask(f"measure {done} {count}"))
                finished += count
                advance(finished, f"{result.label} {result.middle_ms / 1000:.3g} s")
            done += count
        for variant, result in zip(variants, measured, strict=True):
            result.primitives = pool.worker(variant).ask("primitives")["seconds"]
    return measured


def start(
    subject: Subject, named: Mapping[str, Configuration], variant: Variant, workload: Workload
) -> Worker:
    """Start a configuration's worker and wait until it is prepared; the subject is the workload."""
    configuration = named[variant.name]
    specification = {"subject": asdict(subject), "configuration": asdict(configuration)}
    # glibc reads GLIBC_TUNABLES once, when a process starts.
    environment = huge_pages_environment() if configuration.huge_pages else None
    return Worker(variant.name, module=MODULE, specification=specification, environment=environment)


def labels(configurations: Sequence[Configuration]) -> list[str]:
    """Return names that distinguish configurations, without properties common to all."""
    parts = {
        "onednn": lambda each: "optimized" if each.onednn else "default",
        "threads": lambda each: counted(each.threads, "thread"),
        "memory": lambda each: f"memory {each.memory or 'default'}",
        "huge_pages": lambda each: "huge pages" if each.huge_pages else "small pages",
    }
    differing = [
        name for name in parts if len({getattr(each, name) for each in configurations}) > 1
    ] or ["onednn"]
    return [", ".join(parts[name](each) for name in differing) for each in configurations]


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Set cores and memory, build and run the network; return facts and the request handler."""
    configuration = Configuration(**specification["configuration"])
    subject = Subject(**specification["subject"])
    # A policy is for memory that is first written after it, so it precedes torch.
    if configuration.memory is not None:
        apply_memory(configuration.memory, allowed=read_allowance().memory_nodes)
    take_cores(choose_cores(threads=configuration.threads))
    notes = check_cores(choose_cores(threads=configuration.threads))
    # torch had to wait for the cores.
    from profiling.layers.timing import prepare_timing  # noqa: PLC0415

    return prepare_timing(subject, onednn=configuration.onednn, notes=notes)


if __name__ == "__main__":
    serve(prepare)
