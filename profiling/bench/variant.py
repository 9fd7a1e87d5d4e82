"""A way to do the benchmarked thing, under a name.

TODO-DOC What every contestant of a benchmark is given to do.

TODO-DOC What a recipe gives its worker: the thing to time, ready to run.

A recipe is a module with `prepare(workload: Workload, **options) -> Prepared`.

TODO-DOC One run of a contestant, and what many of them say together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, Protocol

from common.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a worker process is made from."""

    name: str
    about: str
    """For `--help`: what it is, in a few words."""
    recipe: str
    """Module whose `prepare(workload, **options)` builds it; see profiling.bench.variant."""
    allocator: str = "tuned"
    """The memory policy that its process sets before torch is loaded."""
    memory: str | None = None
    """Where its memory lies, as numactl names it; None: near the core that first writes it."""
    pinned: bool = False
    """Whether its threads are bound to cores as those of a rank of train.py; its recipe then takes
    `main_cpus`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its process, beside those of this one."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    package: str | None = None
    """Python package that it needs and that need not be installed."""
    needs_intel_openmp: bool = False
    """Whether it is left out where Intel's OpenMP is not installed, which goes before torch's own
    in the process of every contestant that is `pinned`."""
    cache_variable: str | None = None
    """Variable that names a folder for files of its process, removed when that ends."""
    by_default: bool = True
    """Whether it runs when no contestants are named."""


def choose(contestants: Sequence[Variant], names: str | None) -> list[Variant]:
    """The contestants of a comma-separated list, in its order.

    None takes those that run by default; `all` takes all.

    Raises:
        InputError: A name is not known, or given twice.
    """
    if names is None:
        return [contestant for contestant in contestants if contestant.by_default]
    if names == "all":
        return list(contestants)
    known = {contestant.name: contestant for contestant in contestants}
    wanted = names.split(",")
    for place, name in enumerate(wanted):
        if name not in known:
            raise InputError(
                f"--contestants: {name!r} is not known; choose from {', '.join(known)}"
            )
        if name in wanted[:place]:
            raise InputError(f"--contestants: {name!r} is given twice; name it once")
    return [known[name] for name in wanted]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch's measures; the batch itself is made from the seed, the same for all."""

    images: int = 2
    """Images in the batch."""
    image_size: int = 800
    """Height and width of every image. [pixels]"""
    classes: int = 264
    """Outputs of the classification head for every anchor."""
    seed: int = 0
    """Of images, boxes and weights."""

    def __str__(self) -> str:
        return (
            f"{self.images} images of {self.image_size}x{self.image_size}, {self.classes} classes"
        )


STANDARD = Workload()
"""The workload that targets are given for."""


class PhaseName(Protocol):
    """Has the name of the phase that runs."""

    @property
    def name(self) -> str:
        """Such as `forward`; empty outside of all phases."""


@dataclass(frozen=True)
class Prepared:
    """Something that can be run again and again."""

    run: Callable[[], Mapping[str, float]]
    """Does the thing once; returns what is worth keeping of it beside its time."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers that hold for every run."""
    phase: PhaseName | None = None
    """Knows which phase of a run is going on, where it has several."""
    compiled_bytes: Callable[[], int] | None = None
    """Bytes that the compiled graphs of a run move, where it has such graphs: no operator is called
    in them that could be counted."""


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
