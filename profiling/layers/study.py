"""Configurations in turn, each in a process of its own.

TODO-DOC What one configuration has shown: its iterations, and the numbers that are made of them.

TODO-DOC What is timed, and how it is run. Loads no torch.

TODO-DOC Whether there is an NVIDIA GPU, asked of its driver: torch takes seconds to load.
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
from profiling.bench.variant import huge_pages_environment
from profiling.bench.worker_pool import SPARE_MB, Worker

MODULE = "profiling.layers.worker"
TURN_MS = 10_000.0
"""About so long is a turn, so that what disturbs the machine meets all configurations alike."""
LONGEST_TURN = 10
SETTLING = 1
"""Iterations at the start of a turn that do not count: another process has used the memory."""

Told = Callable[[int, str], None]
"""Called as `told(iterations done since the last call, what to say of them)`."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One of the ways to run it that are compared."""

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
    """Of a time over all iterations. [milliseconds]"""

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
    """In one iteration."""
    trains: bool
    """Whether it has weights that get gradients."""
    forward: Statistic
    backward: Statistic | None
    """None: it has no backward pass, as nothing before it trains."""
    share: float
    """Of the whole iteration."""
    gflop: float
    """Multiplications and additions of an iteration, both passes. [10⁹]"""
    gflop_per_s: float | None
    """None where no arithmetic is counted."""

    @property
    def total_ms(self) -> float:
        """Average of both passes together."""
        return self.forward.mean + (self.backward.mean if self.backward else 0.0)


@dataclass(kw_only=True)
class Measured:
    """The iterations of one configuration, as its worker told them; milliseconds."""

    configuration: Configuration
    label: str
    """What tells it from the others."""
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

    def whole(self, work: str) -> Statistic:
        """All of `forward` or `backward`."""
        return statistic([one[work] for one in self.watched])

    @property
    def total_ms(self) -> float:
        """An iteration on average."""
        return self.whole("forward").mean + self.whole("backward").mean

    @property
    def plain_ms(self) -> float:
        """The median of iterations that nobody watched."""
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
        """Of an iteration, in convolutions."""
        return sum(layer.share for layer in self.layers() if layer.type in CONVOLUTIONS)

    def layers(self) -> list[Layer]:
        """In the order of their first call, then what lies between them; together, it is all."""
        found = [self._layer(fact) for fact in self.facts["layers"]]
        forward = [rest(one, one["forward"], place=0) for one in self.watched]
        backward = [rest(one, one["backward"], place=1) for one in self.watched]
        between = statistic(forward), statistic(backward)
        return [
            *found,
            Layer(
                name=BETWEEN,
                type="",
                calls=1,
                trains=False,
                forward=between[0],
                backward=between[1],
                share=(between[0].mean + between[1].mean) / self.total_ms,
                gflop=0.0,
                gflop_per_s=None,
            ),
        ]

    def _layer(self, fact: Mapping[str, Any]) -> Layer:
        times = [one["layers"][fact["name"]] for one in self.watched]
        forward = statistic([pair[0] for pair in times])
        has_backward = any(pair[1] is not None for pair in times)
        backward = statistic([pair[1] or 0.0 for pair in times]) if has_backward else None
        total = forward.mean + (backward.mean if backward else 0.0)
        gflop = fact["gflop_forward"] + (fact["gflop_backward"] if backward else 0.0)
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
        """Average milliseconds of backward work between layers, by node of autograd's graph."""
        names = {name for one in self.watched for name in one["nodes"]}
        found = {name: fmean(one["nodes"].get(name, 0.0) for one in self.watched) for name in names}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Contestant:
    """A configuration's worker, and what it has measured."""

    worker: Worker
    measured: Measured


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network and its batch."""

    model: str
    """One of `DEFAULT_BATCH`."""
    batch: int
    image_size: int
    """Height and width. [pixels]"""
    precision: str
    """`bf16` or `float32`."""
    device: str
    """`cpu` or `cuda`."""
    seed: int = 0

    def __str__(self) -> str:
        images = f"{self.batch} image{'s' if self.batch > 1 else ''}"
        return f"{self.model}, {images} of {self.image_size}×{self.image_size}, {self.precision}"


def run_study(
    subject: Subject,
    configurations: Sequence[Configuration],
    *,
    iterations: int,
    warm_up: int,
    console: Console,
) -> list[Measured]:
    """Time iterations of each configuration, in turn as far as memory does for them at once.

    Args:
        subject: What is timed.
        configurations: How.
        iterations: Of each, that count.
        warm_up: Of each, before them.
        console: Progress is shown here.

    Raises:
        WorkerDiedError: A worker ended by itself.
        InputError: A configuration asks for what is not here.
    """
    left = list(zip(labels(configurations), configurations, strict=True))
    measured: list[Measured] = []
    done, total = 0, len(left) * (warm_up + iterations)
    with progress(console, f"layers of {subject.model}, iterations", total=total) as advance:

        def told(count: int, note: str) -> None:
            nonlocal done
            done += count
            advance(done, note)

        while left:
            measured += run_group(
                subject, left, iterations=iterations, warm_up=warm_up, told=told, console=console
            )
    return measured


def run_group(
    subject: Subject,
    left: list[tuple[str, Configuration]],
    *,
    iterations: int,
    warm_up: int,
    told: Told,
    console: Console,
) -> list[Measured]:
    """Take as many from `left` as fit into memory together, and time them in turn."""
    with ExitStack() as workers:
        group: list[Contestant] = []
        while left and fits(group):
            label, configuration = left.pop(0)
            told(0, f"{label}: warming up")
            contestant = start(subject, configuration, label=label)
            workers.enter_context(closing(contestant.worker))
            ask(contestant, f"warm-up {warm_up}")
            told(warm_up, f"{label}: warmed up")
            group.append(contestant)
        if left:
            later = ", ".join(label for label, _ in left)
            console.print(f"memory does not do for all at once: {later} come afterwards")
        take_turns(group, iterations=iterations, told=told)
    return [one.measured for one in group]


def fits(group: Sequence[Contestant]) -> bool:
    """Whether there is memory for one more; for the first there always is."""
    hungriest = max((one.measured.peak_mb for one in group), default=None)
    return hungriest is None or available_mb() >= hungriest + SPARE_MB


def start(subject: Subject, configuration: Configuration, *, label: str) -> Contestant:
    """Start a configuration's worker."""
    worker = Worker(
        label,
        module=MODULE,
        specification={"subject": asdict(subject), "configuration": asdict(configuration)},
        environment=huge_pages_environment() if configuration.huge_pages else None,
    )
    measured = Measured(configuration=configuration, label=label, facts=worker.facts)
    return Contestant(worker, measured)


def take_turns(group: Sequence[Contestant], *, iterations: int, told: Told) -> None:
    """A few iterations of each after the other, until all have theirs; then a look at oneDNN."""
    done = 0
    while done < iterations:
        count = min(iterations - done, turn_length(group))
        for one in group:
            if len(group) > 1:
                one.worker.ask(f"warm-up {SETTLING}")
            ask(one, f"measure {count}")
            told(count, f"{one.measured.label} {one.measured.middle_ms / 1000:.3g} s")
        done += count
    for one in group:
        one.measured.primitives = one.worker.ask("primitives 1")["seconds"]


def turn_length(group: Sequence[Contestant]) -> int:
    """Iterations of each in the next turn."""
    slowest = max(one.measured.middle_ms for one in group)
    return max(1, min(LONGEST_TURN, round(TURN_MS / slowest)))


def ask(contestant: Contestant, question: str) -> None:
    """Put a question, and keep what comes back."""
    answer = contestant.worker.ask(question)
    measured = contestant.measured
    measured.watched += answer.get("watched", [])
    measured.plain += answer.get("plain", [])
    measured.warm_ms = answer.get("last_ms", measured.warm_ms)
    measured.peak_mb = answer["peak_mb"]
    measured.huge_pages_mb = answer.get("huge_pages_mb", 0.0)


BETWEEN = "between layers"
"""The rest of an iteration: sums, activations and reshaping that no module does, and autograd."""
CONVOLUTIONS = ("Conv2d", "Conv3d", "Conv1d", "ConvTranspose2d")


def rest(iteration: Mapping[str, Any], whole: float, *, place: int) -> float:
    """Of a pass, what no layer has taken."""
    return whole - sum(pair[place] or 0.0 for pair in iteration["layers"].values())


def passes_ms(iteration: Mapping[str, Any]) -> float:
    """Both passes."""
    both: float = iteration["forward"] + iteration["backward"]
    return both


def statistic(values: Sequence[float]) -> Statistic:
    """Of at least one value."""
    return Statistic(fmean(values), median(values), pstdev(values))


DEFAULT_BATCH = {"retinanet": 2, "alexnet": 64, "resnet50": 16, "resnext50": 16}
"""The networks that can be timed, and images in a batch."""
DEFAULT_SIZE = {"retinanet": 800}
CLASSIFIER_SIZE = 224
PLAIN_EVERY = 5
"""After the first of so many watched iterations comes one that nobody watches, to see what
watching costs."""


def labels(configurations: Sequence[Configuration]) -> list[str]:
    """Names that tell configurations apart: what is the same for all is left out."""
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
    """Look for one.

    Raises:
        InputError: There is no driver, or it knows no GPU.
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
