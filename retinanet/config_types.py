"""Types of configuration fields, and what follows from their values for a number of ranks.

Marks at fields, and checks of their values; intervals between checkpoints (`30min`, `500 steps`,
`epoch`), windows of steps (`20-22`) and milestones; how a batch is split among ranks; compute
groups, and the momentum of the optimizer in addition to theirs. Also which paths mean a checkpoint:
nothing here loads torch, so commands refuse a wrong one at once.
"""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    LiteralString,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from common.errors import InputError
from common.machine import fastest_precision
from common.wording import counted
from launch.topology import format_cpu_list

Mark = TypeVar("Mark")

# Strict: pydantic makes no number of a text. Docstrings of fields are their descriptions in --help.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

PICKLES = (".pth", ".pt", ".pkl", ".ckpt", ".bin")
"""Suffixes of files that only `retinanet convert` reads."""
EXPORTED = (".onnx", ".pt2", ".xml")
TORCHVISION = "torchvision"  # In place of a file: weights that torchvision publishes
DETECTOR = rf"^(?!.*(?:{'|'.join(re.escape(end) for end in (*PICKLES, *EXPORTED))})$)."
"""A path by its name for `model.weights`, as a pattern for editors."""

BackboneName: TypeAlias = Literal["resnext50_32x4d", "resnet50", "resnet101"]
"""Networks of torchvision's whose layers consist of `Bottleneck` blocks."""
VariantName: TypeAlias = Literal["v1", "v2"]


class Architecture(NamedTuple):
    """What decides the shapes of a detector's weights, besides the number of classes."""

    backbone: str = "resnext50_32x4d"
    variant: str = "v1"  # See `retinanet.model.retinanet.VARIANTS`

    def __str__(self) -> str:
        """Return the settings, as in a command."""
        return f"model.backbone={self.backbone} model.variant={self.variant}"

    @property
    def title(self) -> str:
        """The name of the model: `RetinaNet-ResNeXt50`, `RetinaNet-ResNet50 v2`."""
        backbone = self.backbone.partition("_")[0].replace("resne", "ResNe").replace("xt", "Xt")
        return f"RetinaNet-{backbone}" + ("" if self.variant == "v1" else f" {self.variant}")


DEFAULT_ARCHITECTURE = Architecture()
COCO_DETECTORS = {
    "retinanet_resnet50_fpn": Architecture("resnet50", "v1"),
    "retinanet_resnet50_fpn_v2": Architecture("resnet50", "v2"),
}
"""Detectors that torchvision publishes, trained on COCO, by the names of their functions."""
BEST_COCO_DETECTOR = "retinanet_resnet50_fpn_v2"  # Box mAP 0.415; the other has 0.364


def require_fitting_part(value: str, others: ValidationInfo) -> str:
    """Replace `auto` by what torchvision's detector in `weights` has; refuse what it has not."""
    detector = str(others.data.get("weights"))
    architecture = COCO_DETECTORS.get(detector, DEFAULT_ARCHITECTURE)
    needed: str = getattr(architecture, str(others.field_name))
    if value not in ("auto", needed) and detector in COCO_DETECTORS:
        advice: LiteralString = "the detector {detector} of model.weights has {needed}"
        raise PydanticCustomError("weights", advice, {"detector": detector, "needed": needed})
    return needed if value == "auto" else value


Part = TypeVar("Part")
# pydantic does not validate defaults by itself, and `auto` would stay.
PartOfArchitecture = Annotated[
    Part, AfterValidator(require_fitting_part), Field(validate_default=True)
]


Precision: TypeAlias = Literal["auto", "bf16", "float32"]
"""A number format of the model, as settings and options name it."""


def chosen_precision(name: str) -> str:
    """Return what a `Precision` means here: for `auto` the faster one, for others themselves."""
    return fastest_precision() if name == "auto" else name


SIDES = range(64, 16385, 32)  # The values of a side of `data.image_size`. [pixels]
Side = Annotated[int, Field(ge=SIDES[0], le=SIDES[-1], multiple_of=SIDES.step)]


def image_side(text: str) -> int:
    """Parse an option's side that `data.image_size` permits. [pixels]

    Raises argparse's ArgumentTypeError.
    """
    # The length is checked before int(), which has an error of its own above 4,300 digits.
    if not (text.isdecimal() and len(text) <= 5 and int(text) in SIDES):
        expected = f"expected pixels from {SIDES[0]} to {SIDES[-1]}, a multiple of {SIDES.step}"
        raise ArgumentTypeError(f"{expected}, found {text[:20]!r}")
    return int(text)


def image_size_of(text: str) -> int | tuple[int, int]:
    """Parse an option's image size: the side of a square, `800`, or height and width, `480x640`.

    Raises argparse's ArgumentTypeError.
    """
    height, *more = map(image_side, text.split("x"))
    if len(more) > 1:
        raise ArgumentTypeError(f"expected a side, or height x width, found {text[:20]!r}")
    return (height, more[0]) if more and more != [height] else height


MOST_STEPS_OF_RUN = 10**12
MOST_EPOCHS = 10**9
MOST_CORES = 10**5


class Resume(Enum):
    """The effect of a changed field on a resumed run.

    Without a mark a change is allowed, and reported: the next steps depend on the field.
    """

    MUST_MATCH = "must match"
    """The checkpoint does not fit another value: resuming is refused."""
    FREE = "free"  # No step's weights depend on it, or its effect is recorded as the run's set-up
    LENGTH = "length"  # Steps depend on it only where the learning rate falls until the run's end


class Hosts(Enum):
    """Whether the hosts of a run may have values of their own. Without a mark all ranks agree."""

    MAY_DIFFER = "may differ"  # Where files are, and what fits the cores of a host


@dataclass(frozen=True, eq=False)
class LogitCopies:
    """The number of tensors of the logits' size in memory at once, by the field's value."""

    by_value: Mapping[str, int]


def field_marks(section: type, kind: type[Mark]) -> dict[str, Mark]:
    """Return the marks of one kind by field, such as `norm: Annotated[str, Resume.MUST_MATCH]`."""
    return {
        name: mark
        for name, hint in get_type_hints(section, include_extras=True).items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, kind)
    }


def expected(advice: str, *, where: Callable[[Any], bool] = lambda value: True) -> WrapValidator:
    """Return a check of the type, and of `where` for its values, whose message lists valid values.

    pydantic's message about a union names only one member of it at a time.
    """

    def require(value: object, check: ValidatorFunctionWrapHandler) -> object:
        with suppress(ValidationError):
            if where(checked := check(value)):
                return checked
        raise PydanticCustomError("value", advice)

    return WrapValidator(require)


def as_one(value: Any) -> Any:
    """Return the entry of a list of one, or of equal entries; `none` as (), others as they are."""
    if value == "none":
        return ()
    return value[0] if isinstance(value, tuple) and len({*value}) == 1 else value


def refused(
    is_wrong: Callable[[Any, Mapping[str, Any]], object], advice: LiteralString
) -> AfterValidator:
    """Return a check of a value together with the fields before it, which `advice` may name.

    A field with an error of its own is not among them.
    """

    def require(value: object, others: ValidationInfo) -> object:
        if is_wrong(value, others.data):
            raise PydanticCustomError("refused", advice, others.data)
        return value

    return AfterValidator(require)


def whole(pattern: re.Pattern[str]) -> str:
    """Return the pattern for a JSON schema, where it is searched for, of whole texts."""
    return f"^(?:{pattern.pattern})$"


INTERVAL = re.compile(r"([1-9][0-9]{0,8}) ?(s|min|h|steps?|epochs?)|epoch")
SECONDS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Interval:
    """A number of seconds, steps or epochs."""

    count: int
    unit: Literal["seconds", "steps", "epochs"]


def parse_interval(text: str) -> Interval:
    """Parse an interval, a value of `checkpoint.every`."""
    match = INTERVAL.fullmatch(text)
    assert match is not None
    count, unit = int(match[1] or 1), match[2] or "epoch"
    if unit in SECONDS:
        return Interval(count * SECONDS[unit], "seconds")
    return Interval(count, "steps" if unit.startswith("step") else "epochs")


STEP_WINDOW = re.compile(r"([1-9][0-9]{0,11})(?:-([1-9][0-9]{0,11}))?")
MOST_STEPS = 10_000  # Steps of a window: the records of one take about a megabyte


def parse_window(text: str | None) -> range:
    """Return the steps of a window, which are counted from 1; none for None."""
    if text is None:
        return range(0)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


Steps = Annotated[
    Annotated[str, Field(pattern=whole(STEP_WINDOW))] | None,
    expected(
        f"input should be at most {MOST_STEPS} steps, counted from 1, such as 20-22 or 20",
        where=lambda steps: steps is None or 0 < len(parse_window(steps)) <= MOST_STEPS,
    ),
    # Runs first: a single step may be given as a number.
    BeforeValidator(
        lambda value: str(value) if type(value) is int else value,
        json_schema_input_type=Annotated[str, Field(pattern=whole(STEP_WINDOW))]
        | Annotated[int, Field(ge=1)]
        | None,
    ),
]
"""A window of a run's steps."""

MOST_MILESTONES = 1000
DEFAULT_MILESTONE_FACTOR = 0.1
Milestones = Annotated[
    tuple[Annotated[float, Field(gt=0, le=MOST_EPOCHS)], ...],
    Field(strict=False, max_length=MOST_MILESTONES),
    expected(
        "input should be rising numbers of epochs, such as [16, 22]",
        where=lambda epochs: all(before < after for before, after in pairwise(epochs)),
    ),
]
"""Epochs after which the learning rate falls, in rising order."""

MetricLibrary = Literal["faster-coco-eval", "pycocotools"]
DEFAULT_LIBRARY: MetricLibrary = "faster-coco-eval"

AugmentationName = Literal["flip", "scale_jitter", "photometric", "ssd", "strong"]
AUGMENTATION_NAMES: tuple[AugmentationName, ...] = get_args(AugmentationName)


Augmentation: TypeAlias = (
    AugmentationName
    | Literal["none"]
    | Annotated[
        tuple[AugmentationName, ...],
        Field(strict=False, json_schema_extra={"uniqueItems": True}),
    ]
)
"""Values of `data.augmentation`; `none` and a list of one name become () and the name."""


def augmentation_names(value: Augmentation) -> tuple[AugmentationName, ...]:
    """Return the names of a value of `data.augmentation`."""
    if value == "none":
        return ()
    return (value,) if isinstance(value, str) else value


LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6  # Of a class; float32 holds their products with any loss
ClassWeightsInFile = (
    Literal["balanced"]
    | Annotated[
        dict[str, Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]], Field(min_length=1)
    ]
    | None
)


def require_class_weights(value: object) -> object:
    """Refuse what is neither `balanced`, nor null, nor a weight for each of some classes."""
    if value is None or value == "balanced":
        return value
    if not isinstance(value, dict) or not value:
        advice = "input should be balanced, null, or weights by class name, such as {Bus: 3}"
        raise PydanticCustomError("class_weights", advice)
    for name, weight in value.items():
        # A comparison with NaN is false. `type`: true is a number for isinstance.
        if type(weight) not in (int, float) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            advice = "the weight of {name} should be from 0.000001 to 1,000,000, found {found}"
            context = {"name": name, "found": repr(weight)}
            raise PydanticCustomError("class_weights", advice, context)
    return value


MOST_IMAGES = 10**6
"""Images of a rank in a batch. What fits a host's memory is checked before a run."""
BatchSplit: TypeAlias = (
    Literal["even", "speed"]
    | Annotated[
        tuple[Annotated[int, Field(ge=1, le=MOST_IMAGES)], ...], Field(strict=False, min_length=1)
    ]
)
"""Values of `distributed.batch_split`."""


def split_at_start(split: BatchSplit, *, batch_size: int, ranks: int) -> tuple[int, ...]:
    """Return the images of each rank in a batch; even where `speed` is still to be measured.

    `batch_size` is their mean, however they are split: the images of a step, the learning rate and
    the steps of an epoch are the same.

    Raises:
        InputError: A list is not of these ranks, or not of this batch.
    """
    if isinstance(split, str):
        return (batch_size,) * ranks
    total = ranks * batch_size
    if len(split) != ranks or sum(split) != total:
        numbers = counted(ranks, "number")
        raise InputError(
            f"distributed.batch_split: expected {numbers} with the sum {total} (ranks × "
            f"training.batch_size={batch_size}), even or speed, found {list(split)}"
        )
    return split


def split_by_speed(
    speeds: Sequence[float], *, images: int, most: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the images of each rank that minimize the time of the slowest rank.

    A rank's time is taken to be proportional to its images. Each has one; every further image goes
    where it would be done first, so that no other split ends earlier. The speeds of the ranks are
    above 0 [images/s], `images` those of all together, one each at least. `most` is the number that
    each rank's memory holds, together `images` at least; none: all of them.
    """
    limits = most or [images] * len(speeds)
    assert min(speeds) > 0 and len(speeds) <= images <= sum(limits) and min(limits) > 0
    split = [1] * len(speeds)
    # The keys are the times at which the ranks would complete one more image: here a second one.
    next_done = [(2 / speed, rank) for rank, speed in enumerate(speeds) if limits[rank] > 1]
    heapify(next_done)
    for _ in range(images - len(speeds)):
        _, rank = heappop(next_done)
        split[rank] += 1
        if split[rank] < limits[rank]:
            heappush(next_done, ((split[rank] + 1) / speeds[rank], rank))
    return tuple(split)


def loading_processes(workers: int | Literal["auto"], *, reserved_cores: int) -> int:
    """Return the processes of `data.workers`; auto: one per reserved core, else one if needed."""
    return max(1, reserved_cores) if workers == "auto" else workers


def describe_split(images: Sequence[int], speeds: Sequence[float] = ()) -> str:
    """Describe the images of each rank in a batch, and their speeds where measured. [images/s]

    Example: `3 images on rank 0, 1 on ranks 1-2, by measured speed 2.10 and 0.68–0.71 images/s`.
    """
    ranks_by_images = {
        count: [rank for rank, n in enumerate(images) if n == count] for count in images
    }
    parts = [
        f"{count} on rank{'s' if len(ranks) > 1 else ''} {format_cpu_list(ranks)}"
        for count, ranks in ranks_by_images.items()
    ]
    unit = "image" if images[0] == 1 else "images"
    text = ", ".join(parts).replace(" on", f" {unit} on", 1)
    if not speeds:
        return text
    ranges = []
    for ranks in ranks_by_images.values():
        group_speeds = [speeds[rank] for rank in ranks]
        lowest, highest = f"{min(group_speeds):.2f}", f"{max(group_speeds):.2f}"
        ranges.append(lowest if lowest == highest else f"{lowest}–{highest}")
    return f"{text}, by measured speed {' and '.join(ranges)} images/s"


def planned_split(split: BatchSplit, *, batch_size: int, ranks: int) -> str:
    """Describe the split of a configuration on a number of ranks; empty if it is even.

    Raises:
        InputError: A list is not of these ranks, or not of this batch.
    """
    images = split_at_start(split, batch_size=batch_size, ranks=ranks)
    if split == "speed" and ranks > 1 and batch_size > 1:
        return f"{sum(images)} images, split by the speed of each rank, measured at the start"
    return describe_split(images) if len(set(images)) > 1 else ""


DEFAULT_BETA1 = 0.9  # Adam's and LAMB's without groups, as MLPerf has it


def implicit_momentum(groups: int) -> float:
    """Return the implicit momentum of asynchronous updates by this many compute groups.

    Gradients that are applied late continue the direction of earlier steps: 1 − 1/g with g groups
    of equal speed (Mitliagkas et al. 2016, "Asynchrony begets Momentum, with an Application to Deep
    Learning", arXiv 1605.09774, theorem 3).
    """
    return 1 - 1 / groups


def explicit_momentum(groups: int, *, total: float = DEFAULT_BETA1) -> float:
    """Return the optimizer's part of a total momentum; 0 if the implicit momentum exceeds it.

    Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 4) lowers it accordingly.
    """
    # Rounded, since 0.9 − 0.75 is 0.15000000000000002, which would be logged.
    return max(0.0, round(total - implicit_momentum(groups), 6))


def resolve_beta1(setting: float | Literal["auto"], *, groups: int) -> float:
    """Return the value of `training.beta1` for a number of groups."""
    return explicit_momentum(groups) if setting == "auto" else setting


def ranks_of_groups(ranks: int, groups: int) -> list[tuple[int, ...]]:
    """Return the ranks of each group, neighbours: of 8, 0-3 and 4-7. `groups` divides `ranks`."""
    size = ranks // groups
    return [tuple(range(first, first + size)) for first in range(0, ranks, size)]


def group_of_rank(rank: int, *, ranks: int, groups: int) -> int:
    """Return the number of a rank's compute group."""
    return rank // (ranks // groups)


def require_groups(groups: int, *, ranks: int) -> None:
    """Refuse groups that are not of equal size.

    Raises:
        InputError: `groups` does not divide the ranks.
    """
    if ranks % groups == 0:
        return
    fitting = [str(count) for count in range(1, ranks + 1) if ranks % count == 0]
    advice = f"{', '.join(fitting[:-1])} or {fitting[-1]}" if fitting[1:] else fitting[0]
    count = "there is 1 rank" if ranks == 1 else f"there are {ranks} ranks"
    raise InputError(
        f"distributed.groups: {groups} groups cannot be of equal size: {count}; use {advice}"
    )


def planned_groups(groups: int, *, ranks: int) -> str:
    """Describe the compute groups of a number of ranks; empty for a single group.

    Raises:
        InputError: `groups` does not divide the ranks.
    """
    require_groups(groups, ranks=ranks)
    size = ranks // groups
    return f"{groups} of {counted(size, 'rank')}, asynchronous" if groups > 1 else ""


STATE_FILE = "state.json"  # Every checkpoint has one
BEST, LAST = "best", "last"  # Links beside the checkpoints


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint folder for a path that the user gave.

    The path is a checkpoint's folder, a file in it, or a run's folder (its best, else its last).

    Raises:
        InputError: There is none.
    """
    below = (path / "checkpoints" / BEST, path / "checkpoints" / LAST, path / BEST, path / LAST)
    if path.exists():
        for candidate in (path, path.parent, *below):
            if (candidate / STATE_FILE).is_file():
                return candidate
    reason = "contains no checkpoint" if path.exists() else "does not exist"
    raise InputError(f"{path}: {reason}; give runs/NAME/checkpoints/best or a folder like it")


def refuse_what_is_no_checkpoint(path: Path) -> None:
    """Refuse pickled weights and exported models, where a checkpoint is expected.

    Raises:
        InputError: Names the command that converts the file, or the option to give.
    """
    if path.suffix in PICKLES:
        raise InputError(
            f"{path}: is a pickle, which could run code, not a checkpoint; convert weights for "
            f"training with retinanet convert {path} --out "
            f"{path.with_suffix('.safetensors')}, or a whole detector to a checkpoint with "
            f"retinanet convert --detector {path} --classes FILE.json --out "
            f"{path.with_suffix('')}"
        )
    if path.suffix in EXPORTED:
        raise InputError(
            f"{path}: is an exported model; give --checkpoint the checkpoint that it was exported "
            "from, such as runs/NAME/checkpoints/best"
        )


def require_checkpoint(path: Path) -> None:
    """Raise InputError if a path means no checkpoint."""
    refuse_what_is_no_checkpoint(path)
    find_checkpoint(path)
