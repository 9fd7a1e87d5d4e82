"""An ablation, as defined by its file in configs/ablations.

It has a question, variants, comparisons, and the paper's statement.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from common.errors import InputError
from common.files import read_text
from common.stored import first_fault
from common.yaml_text import read_yaml
from retinanet.config_file import SHIPPED, format_value
from retinanet.config_types import STRICT

Option = str | int | float | bool


@dataclass(config=STRICT, frozen=True, kw_only=True)
class AblationVariant:
    """One of the variants that run in turn."""

    about: str
    recipe: str | None = None  # Module that prepares it; None: the ablation's
    options: dict[str, Option] = Field(default_factory=dict)
    """For the recipe, on top of the ablation's."""
    allocator: Literal["system", "tuned", "tcmalloc", "jemalloc"] | None = None
    """Memory policy; None: the ablation's."""
    huge_pages: bool = False  # Whether the C library asks the kernel for huge pages
    memory: str | None = None
    """Memory policy in numactl's terms; requires several memory nodes."""
    pillow_simd: bool = False  # Whether Pillow-SIMD stands in Pillow's place
    needs: tuple[Literal["bf16", "ipex"], ...] = ()
    """Needs that not every machine meets, beside those of the fields above."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Comparison:
    """A change that is compared with its baseline."""

    change: str
    baseline: str  # Another variant; or the same, with another quantity
    of: str = "seconds"  # The quantity: seconds of a run, or one of the recipe's details
    baseline_of: str | None = None  # The baseline's, where it is another
    ratio: Literal["times as fast", "times as much", "share"] = "times as fast"
    """Baseline over change, for times; change over baseline, as a number or in percent."""
    paper: Annotated[float, Field(gt=0)] | None = None  # The paper's figure, in the same terms
    more: str = ""  # Why ours is larger than the paper's, where it is
    alike: str = ""  # The sentence where it is about the same
    less: str = ""  # Why ours is smaller, where it is
    remark: str = ""  # A sentence for any case


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ChartChoice:
    """The chart of an ablation."""

    kind: Literal["bars", "shares", "curves", "grid", "points"] = "bars"
    """Medians as bars; parts of a whole; losses by step; throughput by ranks; by batch size."""
    of: str = "seconds"
    parts: tuple[str, ...] = ()  # Details that add up to it, for bars
    unit: str = "seconds per run"  # Label of the axis


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Size:
    """The size of a measurement; None: the default."""

    image_size: Annotated[int, Field(ge=64, multiple_of=32)] | None = None
    """Height and width. [pixels]"""
    images: Annotated[int, Field(ge=1)] | None = None
    classes: Annotated[int, Field(ge=1)] | None = None  # Outputs of the head for every anchor
    rounds: Annotated[int, Field(ge=1)] | None = None  # Counted runs of each variant
    warm_up: Annotated[int, Field(ge=0)] | None = None  # Runs of each before them
    options: dict[str, Option] = Field(default_factory=dict)
    """For the recipe, on top of the ablation's and below the variant's."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Ablation:
    """A file of configs/ablations."""

    place: int  # Position in the report, ascending
    question: str
    source: str  # Paper and section of the question
    says: str  # The paper's statement in a few words
    recipe: str
    """Module that prepares a variant, see `profiling.bench.variant`; or `mpirun`: whole jobs."""
    variants: Annotated[dict[str, AblationVariant], Field(min_length=1)]
    comparisons: tuple[Comparison, ...]
    options: dict[str, Option] = Field(default_factory=dict)
    """For the recipe of all variants; a precision of `auto` is BF16 where the processor has it."""
    allocator: Literal["system", "tuned", "tcmalloc", "jemalloc"] = "tuned"
    """Memory policy of all variants."""
    chart: ChartChoice = ChartChoice()
    runs_of: str | None = None
    """Another ablation, whose runs of variants of the same names are this one's as well."""
    calls: tuple[str, str] | None = None
    """Two variants whose oneDNN logs are compared call by call."""
    settling: Annotated[int, Field(ge=0)] = 0  # Runs at the start of every turn that do not count
    remark: str = ""  # Further remark for the reader
    quick: Size = Size()
    full: Size = Size()


SizeName = Literal["quick", "full"]

Ablations = Mapping[str, Ablation]  # By name, in order

FOLDER = SHIPPED / "ablations"
SCHEMA = TypeAdapter(Ablation)


def read_all(folder: Path = FOLDER) -> Ablations:
    """Read all ablations by name, in order.

    Raises:
        InputError: A file is not what it should be.
    """
    ablations = {file.stem: read_ablation(file) for file in sorted(folder.glob("*.yaml"))}
    # Sorting is stable: equal places keep the order of names.
    return dict(sorted(ablations.items(), key=lambda item: item[1].place))


def chosen(names: Sequence[str], known: Ablations) -> Ablations:
    """Return the named ablations in order, or all if none is named.

    Raises:
        InputError: A name is not known; the message has the nearest.
    """
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {nearest[0]}?" if nearest else f"choose from {', '.join(known)}"
            raise InputError(f"{name}: no such ablation; {advice}")
    return {name: ablation for name, ablation in known.items() if name in names or not names}


def measured_by(ablations: Ablations, known: Ablations) -> Ablations:
    """Return the ablations to measure for these; some use the runs of another."""
    names = {ablation.runs_of or name for name, ablation in ablations.items()}
    return {name: ablation for name, ablation in known.items() if name in names}


def read_ablation(file: Path) -> Ablation:
    """Read one ablation file; an InputError names the file and the invalid field."""
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as text: {error}") from error
    tree = read_yaml(text, str(file))
    try:
        # As JSON: strict validation accepts a list for a tuple only there.
        ablation = SCHEMA.validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        fault = first_fault(error)
        problem = f"{fault.after_name}, found {format_value(fault.found)}"
        raise InputError(f"{file}: {fault.field or 'the file'}: {problem}") from error
    names = [
        (f"comparisons.{place}.{side}", getattr(comparison, side))
        for place, comparison in enumerate(ablation.comparisons)
        for side in ("change", "baseline")
    ]
    for field, name in [*names, *(("calls", name) for name in ablation.calls or ())]:
        if name not in ablation.variants:
            known = ", ".join(ablation.variants)
            raise InputError(f"{file}: {field}: {name} is not a variant; choose from {known}")
    return ablation
