"""An ablation as its file states it: one question, who takes part, what is held against what."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from retinanet.config import STRICT

Option = str | int | float | bool

RATIOS = ("times as fast", "times as much", "share")
"""Baseline over change, for times; change over baseline, as a number or in percent."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Variant:
    """One of those that run in turn."""

    about: str
    """What it is, in a few words."""
    recipe: str | None = None
    """Module that prepares it; None: the ablation's."""
    options: dict[str, Option] = Field(default_factory=dict)
    """For the recipe, on top of the ablation's."""
    allocator: Literal["system", "tuned", "tcmalloc", "jemalloc"] | None = None
    """Memory policy; None: the ablation's."""
    huge_pages: bool = False
    """Whether the C library asks the kernel for huge pages."""
    memory: str | None = None
    """Where memory lies, as numactl names it; needs a host with several memory nodes."""
    pillow_simd: bool = False
    """Whether Pillow-SIMD stands in Pillow's place."""
    needs: tuple[Literal["bf16", "ipex"], ...] = ()
    """What not every machine has; other needs show in the fields above."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Comparison:
    """A change against its baseline."""

    change: str
    """Name of a variant."""
    baseline: str
    """Another's; or the same, with another quantity."""
    of: str = "seconds"
    """What is compared: seconds of a run, or one of the recipe's details."""
    baseline_of: str | None = None
    """The baseline's, where it is another."""
    ratio: Literal["times as fast", "times as much", "share"] = "times as fast"
    """See `RATIOS`."""
    paper: Annotated[float, Field(gt=0)] | None = None
    """The paper's figure, in the same terms."""
    more: str = ""
    """Why ours is larger than the paper's, where it is."""
    alike: str = ""
    """What to say where it is about the same."""
    less: str = ""
    """Why ours is smaller, where it is."""
    remark: str = ""
    """What to say in any case."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ChartChoice:
    """How the picture of the ablation is drawn."""

    kind: Literal["bars", "shares", "curves", "grid", "points"] = "bars"
    """Medians as bars; parts of a whole; losses by step; throughput by ranks; by batch size."""
    of: str = "seconds"
    """What is drawn."""
    parts: tuple[str, ...] = ()
    """Of bars: details that add up to it."""
    unit: str = "seconds"
    """What stands at the axis."""
    per: str = "a run"
    """Seconds of what."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Size:
    """How much is measured; None takes the usual."""

    image_size: Annotated[int, Field(ge=64, multiple_of=32)] | None = None
    """Height and width. [pixels]"""
    images: Annotated[int, Field(ge=1)] | None = None
    """In a batch."""
    classes: Annotated[int, Field(ge=1)] | None = None
    """Outputs of the head for every anchor."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Counted runs of each variant."""
    warm_up: Annotated[int, Field(ge=0)] | None = None
    """Runs of each before them."""
    options: dict[str, Option] = Field(default_factory=dict)
    """For the recipe, on top of the ablation's and below the variant's."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Ablation:
    """A file of configs/ablations."""

    place: int
    """Where it stands among all, ascending."""
    question: str
    """What one wants to know, as a question."""
    source: str
    """Where in which paper it is asked."""
    says: str
    """What is said there, in a few words of ours."""
    recipe: str
    """Module that prepares a variant, see `profiling.bench.recipe`; or `mpirun`: whole jobs."""
    variants: Annotated[dict[str, Variant], Field(min_length=1)]
    comparisons: tuple[Comparison, ...]
    options: dict[str, Option] = Field(default_factory=dict)
    """For the recipe of all variants; a precision of `auto` is BF16 where the processor has it."""
    allocator: Literal["system", "tuned", "tcmalloc", "jemalloc"] = "tuned"
    """Memory policy of all variants."""
    chart: ChartChoice = ChartChoice()
    runs_of: str | None = None
    """Another ablation, whose runs of variants of the same names are this one's as well."""
    calls: tuple[str, str] | None = None
    """Two variants whose oneDNN logs are held against each other, call by call."""
    settling: Annotated[int, Field(ge=0)] = 0
    """Runs at the start of every turn that do not count."""
    remark: str = ""
    """What else a reader should know."""
    quick: Size = Size()
    full: Size = Size()

    def size(self, name: str) -> Size:
        """`quick` or `full`."""
        return self.quick if name == "quick" else self.full


SizeName = Literal["quick", "full"]

Ablations = Mapping[str, Ablation]
"""By name, in order."""
