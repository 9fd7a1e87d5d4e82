"""Annotations of a data set as columns, and the paths of its splits.

A dict per box costs about a kilobyte: tens of gigabytes for OpenImages' boxes. Columns cost 70
bytes a box, and those of an index (`data.index`) are files that all processes of a host share.
File names are two arrays for the same reason: a million of them are neither objects nor copied
into every process.
"""

import json
import math
import os
import posixpath
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, overload
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError, require_few_classes

MINIMUM_SIDE = 1e-3
"""Pixels; a box with a shorter side has no area that float32 holds, and no IoU with any anchor."""

SLACK = 0.01
"""By how much a share of an image may be outside of 0 to 1: programs round, and draw a little over
the border."""

Resize = Literal["square", "letterbox"]
"""Values of `data.resize`, see `data.transforms`."""

Size = tuple[int, int]
"""(height, width) in pixels."""
ImageSize = int | Size
"""A value of `data.image_size`: the side of a square, or both sides."""


@dataclass(frozen=True, kw_only=True)
class TrainingRules:
    """The settings of a run that decide which images it can use, and how it reads them."""

    image_size: ImageSize  # of the network's input; a rectangle turns with the image [pixels]
    resize: Resize = "square"
    augmentation: Sequence[str] = ("flip",)  # of `data.augmentation.AUGMENTATIONS`
    decoder: str = "pillow"  # as `data.decoding.resolve_decoder` returns it
    class_indices: str = "contiguous"  # or `category_id`, see `data.dataset.make_class_map`
    num_classes: int | None = None  # outputs of the model; None: as many as the categories need
    skip_images_without_boxes: bool = False  # leave out images without a box of a single object
    repeat_rare: float | None = None  # see `data.rare_classes.repeat_factors`; None: no repeats
    bad_image_limit: int | None = None
    """How many unreadable images are replaced; None: the first one stops training"""


def as_size(image_size: ImageSize) -> Size:
    """Return (height, width) of a value of `data.image_size`."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def count_pixels(image_size: ImageSize) -> int:
    """Return the pixels of the network's input."""
    return math.prod(as_size(image_size))


def shown_size(image_size: ImageSize) -> str:
    """Return a size as texts have it: width × height."""
    height, width = as_size(image_size)
    return f"{width}×{height}"


def as_setting(image_size: ImageSize) -> str:
    """Return a size as it is written on a command line."""
    return str(image_size).replace(" ", "").replace("(", "[").replace(")", "]")


def is_turned(height: Any, width: Any, image_size: ImageSize) -> Any:
    """Return whether a rectangle is turned for an image: the other side of both is the longer one.

    Height and width are numbers or arrays.
    """
    rows, columns = as_size(image_size)
    return (height - width) * (rows - columns) < 0


def input_size(original_size: Size, image_size: ImageSize) -> Size:
    """Return (height, width) of the network's input for an image of `original_size`."""
    rows, columns = as_size(image_size)
    return (columns, rows) if is_turned(*original_size, image_size) else (rows, columns)


def content_sizes(
    sizes: NDArray[np.float64], *, inputs: NDArray[np.float64], resize: Resize
) -> NDArray[np.float64]:
    """Return [N, 2] sides of images of `sizes` [N, 2] within the network's `inputs` [N, 2]."""
    if resize == "square":
        return inputs
    tightest = (inputs / sizes).argmin(axis=1, keepdims=True)  # the side that fills the input
    filled, side = (np.take_along_axis(values, tightest, axis=1) for values in (inputs, sizes))
    return np.maximum(1, np.round(sizes * filled / side))


def content_size(original_size: Size, *, size: Size, resize: Resize) -> Size:
    """Return (height, width) of an image of `original_size` within an input of `size`."""
    sides, inputs = (np.array([each], dtype=np.float64) for each in (original_size, size))
    height, width = content_sizes(sides, inputs=inputs, resize=resize)[0].tolist()
    return int(height), int(width)


Corners = tuple[float, float, float, float]


def enclosing_box(box: Corners, degrees: float) -> Corners:
    """Return the box around a box, xyxy, that is rotated about its centre."""
    x1, y1, x2, y2 = box
    cosine, sine = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    x, width = (x1 + x2) / 2, (x2 - x1) * cosine + (y2 - y1) * sine
    y, height = (y1 + y2) / 2, (x2 - x1) * sine + (y2 - y1) * cosine
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def are_shares(boxes: NDArray[np.float64]) -> bool:
    """Return whether all boxes [N, 4] are shares of their images, from 0 to 1, and not pixels."""
    sides = boxes[:, 2:] - boxes[:, :2]
    values = np.concatenate([boxes[:, :2], sides], axis=1)
    is_share = bool(((values >= -SLACK) & (values <= 1 + SLACK)).all())
    return is_share and bool((sides > 0).any() and (values % 1 != 0).any())


def require_pixels(boxes: NDArray[np.float64], *, source: str) -> None:
    """Raise InputError, opening with `source`, if boxes [N, 4] are shares of their images."""
    if are_shares(boxes):
        raise InputError(
            f"{source}: all boxes are from 0 to 1, shares of their images; pixels are expected: "
            "multiply them by width and height"
        )


@dataclass(frozen=True, eq=False)
class Annotations:
    """The annotations of a data set, as columns: C categories, I images, B boxes.

    Categories and images are in the JSON's order. The boxes of image `i` are rows
    `box_offsets[i]` to `box_offsets[i + 1]` of the `box_*` columns, in the JSON's order.
    """

    category_ids: NDArray[np.int64]  # [C]
    category_names: Sequence[str]  # C names
    image_ids: NDArray[np.int64]  # [I]
    file_names: Sequence[str]  # I paths, relative to the folder of images
    widths: NDArray[np.int32]  # [I] pixels
    heights: NDArray[np.int32]  # [I] pixels
    is_displayed: NDArray[np.bool_]  # [I] known to be of the photo as its EXIF displays it
    box_offsets: NDArray[np.int64]  # [I + 1]
    boxes: NDArray[np.float64]  # [B, 4] xyxy in pixels of the original image, not clipped to it
    box_category_ids: NDArray[np.int64]  # [B]
    box_is_crowd: NDArray[np.bool_]
    """[B] COCO's iscrowd, OpenImages' IsGroupOf: one box around several objects"""
    box_areas: NDArray[np.float64]
    """[B] square pixels, the JSON's `area` (of the mask where there is one), else width × height"""
    box_ids: NDArray[np.int64]  # [B] the JSON's annotation ids

    def __len__(self) -> int:
        return len(self.image_ids)

    def checksum(self) -> int:
        """Return a checksum of categories, images and boxes, by which equal data are known."""
        images = (self.image_ids, self.widths, self.heights, self.box_offsets)
        boxes = (self.boxes, self.box_category_ids, self.box_is_crowd)
        checksum = zlib.crc32("\0".join(self.category_names).encode("utf-8", "surrogatepass"))
        for column in (self.category_ids, *images, *boxes):
            checksum = zlib.crc32(np.ascontiguousarray(column).data, checksum)
        return checksum

    def image_size(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of image `index` in pixels."""
        return int(self.heights[index]), int(self.widths[index])

    def box_slice(self, index: int) -> slice:
        """Return the rows of image `index` in the `box_*` columns."""
        return slice(int(self.box_offsets[index]), int(self.box_offsets[index + 1]))

    def images_with_objects(self) -> NDArray[np.int32]:
        """Return the rows of the images that have a box of a single object, not only crowds."""
        # reduceat takes a row where a piece is empty, so only images with boxes are given to it.
        rows = np.flatnonzero(np.diff(self.box_offsets))
        if not len(rows):
            return np.zeros(0, dtype=np.int32)
        only_crowds = np.logical_and.reduceat(self.box_is_crowd, self.box_offsets[rows])
        return rows[~only_crowds].astype(np.int32)

    def select(
        self, *, images: NDArray[np.bool_] | None = None, boxes: NDArray[np.bool_] | None = None
    ) -> "Annotations":
        """Return some of the images, with some of their boxes: masks [I] and [B], default all."""
        kept = np.ones(len(self), dtype=np.bool_) if images is None else images
        kept_boxes = np.repeat(kept, np.diff(self.box_offsets))
        kept_boxes &= True if boxes is None else boxes
        before = np.concatenate([[0], np.cumsum(kept_boxes)])  # boxes kept before each
        columns: dict[str, Any] = {name: getattr(self, name)[kept] for name in IMAGE_ARRAYS}
        columns |= {name: getattr(self, name)[kept_boxes] for name in BOX_COLUMNS}
        names = self.file_names
        if not kept.all():
            names = TextColumn.of(names[row] for row in np.flatnonzero(kept).tolist())
        offsets = offsets_of(np.diff(before[self.box_offsets])[kept])
        return replace(self, file_names=names, box_offsets=offsets, **columns)


def offsets_of(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each of N runs of some lengths begins, and where the last one ends: [N + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


IMAGE_ARRAYS = ("image_ids", "widths", "heights", "is_displayed")
IMAGE_COLUMNS = ("file_names", *IMAGE_ARRAYS)
BOX_COLUMNS = ("boxes", "box_category_ids", "box_is_crowd", "box_areas", "box_ids")
UNNAMED = "N/A"
"""The name of a class that no category uses, as in torchvision's list of COCO's names."""


SAME_CATEGORIES = "use annotations with the same categories"


@dataclass(frozen=True)
class ClassMap:
    """Map labels (the model's class indices, from 0) to category ids and names."""

    category_ids: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def contiguous(cls, ids: NDArray[np.int64], names: Sequence[str]) -> "ClassMap":
        """Return labels 0, 1, 2, … in the order of the JSON's categories (MLPerf's OpenImages)."""
        return cls(tuple(ids.tolist()), tuple(names))

    @classmethod
    def by_category_id(
        cls,
        ids: NDArray[np.int64],
        names: Sequence[str],
        num_classes: int,
        *,
        source: str = "annotations",
    ) -> "ClassMap":
        """Return labels that equal category ids, as in torchvision's COCO checkpoints (91 outputs).

        Raises InputError, opening with `source`, for an id below 0 or not below `num_classes`.
        """
        table = [UNNAMED] * num_classes
        for index, (category_id, name) in enumerate(zip(ids.tolist(), names, strict=True)):
            if not 0 <= category_id < num_classes:
                raise InputError(
                    f"{source}: categories[{index}].id: {category_id} ({name}) is not from 0 to "
                    f"{num_classes - 1}; allow more classes or use contiguous labels"
                )
            table[category_id] = name
        return cls(tuple(range(num_classes)), tuple(table))

    @property
    def num_classes(self) -> int:
        """The number of the model's outputs per anchor."""
        return len(self.category_ids)

    def to_labels(self, category_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return labels [N] of category ids [N]. Raises InputError for an id that has no label."""
        labels = positions_in(np.array(self.category_ids, dtype=np.int64), category_ids)
        unknown = np.flatnonzero(labels < 0)
        if len(unknown):
            raise InputError(
                f"category id {category_ids[unknown[0]]} is not one of the model's "
                f"{self.num_classes} classes; use annotations with the training set's categories"
            )
        return labels.astype(np.int64)

    def to_category_ids(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the JSON's category ids [N] of labels [N]."""
        return np.array(self.category_ids, dtype=np.int64)[labels]

    def check_categories(
        self,
        category_ids: NDArray[np.int64],
        category_names: Sequence[str],
        *,
        file: Path,
        advice: str = SAME_CATEGORIES,
    ) -> None:
        """Raise InputError, naming the first that differs, unless `file` has these categories.

        Their order is free: boxes find their label by id. `advice` ends the message.
        """
        expected = dict(zip(self.category_ids, self.names, strict=True))
        for row, text in category_differences(expected, category_ids, category_names):
            place = "categories" if row is None else f"categories[{row}]"
            raise InputError(f"{file}: {place}: {text}; {advice}")

    def with_ids_of(
        self, category_ids: NDArray[np.int64], category_names: Sequence[str]
    ) -> "ClassMap":
        """Return the same labels with the ids that other annotations give the same names.

        It is this map if their names are not exactly these, or one of them occurs twice.
        """
        ids = dict(zip(category_names, category_ids.tolist(), strict=True))
        names = [name for name in self.names if name != UNNAMED]
        if not len(names) == len(category_names) == len(ids) or set(names) != set(ids):
            return self
        # An output without a class needs an id that no category has.
        free = count(max(ids.values(), default=0) + 1)
        return ClassMap(
            tuple(ids[name] if name != UNNAMED else next(free) for name in self.names), self.names
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dict for the checkpoint; `from_json` reads it."""
        return {"category_ids": list(self.category_ids), "names": list(self.names)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ClassMap":
        """Read what `to_json` returned; raise InputError for any other dict."""
        ids, names = content.get("category_ids"), content.get("names")
        if not (
            isinstance(ids, list)
            and isinstance(names, list)
            and set(map(type, ids)) <= {int}
            and len(ids) == len(names) == len(set(ids))
            and set(map(type, names)) <= {str}
        ):
            raise InputError(
                "classes: expected lists category_ids and names of one length, distinct integers "
                "and strings; the checkpoint is damaged or was not written by this program"
            )
        require_few_classes("classes", len(ids))
        return cls(tuple(ids), tuple(names))


def category_differences(
    expected: Mapping[int, str], ids: NDArray[np.int64], names: Sequence[str]
) -> Iterator[tuple[int | None, str]]:
    """Yield the rows of categories that are not those of the training, and then missing ones."""
    for row, (category_id, name) in enumerate(zip(ids.tolist(), names, strict=True)):
        known = expected.get(category_id)
        if known != name:
            trained = "unknown" if known in (None, UNNAMED) else f"{known!r}"
            yield row, f"id {category_id} is {name!r} here and {trained} in the training set"
    for category_id in sorted(expected.keys() - set(ids.tolist())):
        if expected[category_id] != UNNAMED:
            name = expected[category_id]
            yield None, f"id {category_id} ({name!r}) of the training set is missing"


class TextColumn(Sequence[str]):
    """A sequence of str, stored in two arrays.

    `content` is uint8, all texts joined, in UTF-8; `starts` is int64 [N + 1], where each begins in
    `content`, with its length as the last one.
    """

    def __init__(self, content: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        self.content = content
        self.starts = starts

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextColumn":
        """Return a column of any texts, in their order."""
        # JSON may contain half of a surrogate pair (\ud800), which plain UTF-8 cannot encode.
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        starts = offsets_of(np.array([len(text) for text in encoded], dtype=np.int64))
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]  # raises IndexError as a list does
        text = self.content[self.starts[place] : self.starts[place + 1]].tobytes()
        try:
            return text.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # an index that another program made
            return text.decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))


LENGTHS = " lengths"  # ends the name of the array that belongs to a column of texts
GROWTH = 1.25
"""How much longer an array becomes when it is full; its pages are moved, nothing is copied."""


class GrowingArray:
    """An array that grows by parts, without a second copy in memory at the end."""

    def __init__(self) -> None:
        self.array: NDArray[Any] = np.empty(0)
        self.length = 0

    def extend(self, part: NDArray[Any]) -> None:
        """Append `part` `[N, …]`; the first one determines type and shape."""
        if self.length == 0:
            self.array = np.empty((0, *part.shape[1:]), dtype=part.dtype)
        length = self.length + len(part)
        if length > len(self.array):
            self._resize(max(length, int(len(self.array) * GROWTH)))
        self.array[self.length : length] = part
        self.length = length

    def _resize(self, length: int) -> None:
        # Safe only while no view of the array exists: the memory may move, and numpy's check for
        # other references is off.
        self.array.resize((length, *self.array.shape[1:]), refcheck=False)

    def finish(self) -> NDArray[Any]:
        """Return all parts as one array."""
        self._resize(self.length)
        return self.array


class GrowingColumns:
    """Named arrays and text columns that grow together; the first parts define the names."""

    def __init__(self) -> None:
        self.columns: dict[str, GrowingArray] = {}

    def extend(self, parts: dict[str, Any]) -> None:
        """Append a part to each column."""
        for name, part in parts.items():
            arrays = {name: part}
            if isinstance(part, TextColumn):
                # Lengths are joined instead of starts: the starts of a later part would all have to
                # be shifted.
                arrays = {name: part.content, name + LENGTHS: np.diff(part.starts)}
            for key, array in arrays.items():
                self.columns.setdefault(key, GrowingArray()).extend(array)

    def finish(self) -> dict[str, Any]:
        """Return all columns, and release them."""
        columns: dict[str, Any] = {name: part.finish() for name, part in self.columns.items()}
        self.columns = {}
        for name in [name for name in columns if name + LENGTHS in columns]:
            columns[name] = TextColumn(columns[name], offsets_of(columns.pop(name + LENGTHS)))
        return columns


def positions_in(known: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the first row in `known` [K] of every id [N], int32; -1 for an unknown id."""
    if not len(known):
        return np.full(len(ids), -1, dtype=np.int32)
    # Stable, so that a repeated id is found in its first row.
    order = np.argsort(known, kind="stable").astype(np.int32)
    in_order = known[order]
    rows = np.minimum(np.searchsorted(in_order, ids), len(known) - 1).astype(np.int32)
    is_known = in_order[rows] == ids
    rows = order[rows]
    rows[~is_known] = -1
    return rows


def repeated(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows, in order, whose id [N] an earlier row has."""
    if bool((ids[1:] > ids[:-1]).all()):  # counted upwards, as most data sets' ids are
        return np.zeros(0, dtype=np.int64)
    # Stable, so that the first of equal ids stays in front and only later rows are returned.
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    return np.sort(order[1:][in_order[1:] == in_order[:-1]])


SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")


class Split(NamedTuple):
    """One split of a data set: its COCO-format JSON, or an index, and its folder of images."""

    annotations: Path
    images: Path


def known_trees(root: Path, split: SplitName) -> dict[str, Split]:
    """Return a split's paths in the trees of MLPerf's OpenImages and COCO 2017, by tree name."""
    coco = {"train": "train2017", "validation": "val2017"}[split]
    return {
        "MLPerf's OpenImages": Split(
            root / split / "labels" / "openimages-mlperf.json", root / split / "data"
        ),
        "COCO's": Split(root / "annotations" / f"instances_{coco}.json", root / coco),
    }


def find_split(
    root: Path | None, split: SplitName, *, annotations: Path | None, images: Path | None
) -> Split:
    """Find a split's JSON and images: given paths, else those of a known tree under `root`.

    Raises InputError naming the config field (`data.root`, `data.train_annotations`, …), the
    path looked for, and the trees that are known.
    """
    if annotations is None or images is None:
        if root is not None and not root.is_dir():
            raise InputError(f"data.root: {root} is not a folder; set the data set's folder")
        needed = {"annotations": annotations is None, "images": images is None}
        missing = " and ".join(f"data.{split}_{name}" for name in needed if needed[name])
        if root is None:
            raise InputError(f"data.root: not set; set it, or {missing}")
        trees = known_trees(root, split)
        for tree in trees.values():
            # Half of a tree is enough here, so that the errors below name the half that is missing.
            if (annotations is None and tree.annotations.is_file()) or (
                images is None and tree.images.is_dir()
            ):
                break
        else:
            looked_for = "; ".join(
                f"{name} tree ({tree.annotations}, {tree.images}/)" for name, tree in trees.items()
            )
            raise InputError(
                f"data.root: {root} contains no {split} split; looked for {looked_for}; "
                f"provide one of them, or set {missing}"
            )
        annotations, images = annotations or tree.annotations, images or tree.images
    names = f"data.{split}_annotations", f"data.{split}_images"
    return require_split(Split(annotations, images), names=names)


def require_split(split: Split, *, names: tuple[str, str]) -> Split:
    """Return a split whose paths exist; else raise InputError.

    `names` are those of the settings or options that give annotations and images.
    """
    if not split.annotations.exists():
        raise InputError(
            f"{names[0]}: {split.annotations} does not exist; expected a file in COCO's JSON "
            "format, or an index"
        )
    if not split.images.is_dir():
        raise InputError(f"{names[1]}: {split.images} does not exist; expected a folder of images")
    return split


def leaves_folder(name: str) -> bool:
    """Return whether a file name, appended to a folder, may name a file outside of it."""
    # The search for two dots is a fast filter, as nearly no name has them. A NUL would raise
    # ValueError in open(), not OSError.
    upwards = ".." in name and ".." in PurePosixPath(name).parts
    return upwards or name.startswith("/") or "\0" in name


def spellings(name: str) -> list[str]:
    """Return what a file name may be below a folder of images, the likeliest first.

    Tools export paths of their own machine: `../../upload/1/a.jpg`, `C:\\photos\\a.jpg`,
    `/data/local-files/?d=photos/my%20a.jpg`. After the name itself come its last parts, the longest
    first; none leaves the folder.
    """
    found = {} if leaves_folder(name) else {name: None}
    for text in (name, unquote(name)):
        path = posixpath.normpath(text.rpartition("?d=")[2].replace("\\", "/"))
        # `C:` and `http:` are of other machines.
        parts = [part for part in path.split("/") if part.strip(".") and part[-1] != ":"]
        found |= dict.fromkeys("/".join(parts[cut:]) for cut in range(len(parts)))
    return [text for text in found if not leaves_folder(text)]


def image_path(folder: Path, name: str) -> Path:
    """Return the file of an image; raise InputError if the name is outside of the folder."""
    if leaves_folder(name):
        raise InputError(f"annotations: file_name {shown(name)}: is outside of {folder}")
    return folder / name


def images_in_other(
    names: Sequence[str], folder: Path, *, other_names: Sequence[str], other_folder: Path
) -> NDArray[np.int64]:
    """Return the rows of images whose file is one of another split's, links followed.

    `names` are relative to `folder`, `other_names` to `other_folder`. Files need not exist. A copy
    under another path is another file.
    """
    files, other = hash_files(names, folder), hash_files(other_names, other_folder)
    return np.flatnonzero(np.isin(files, other))


def hash_files(names: Sequence[str], folder: Path) -> NDArray[np.int64]:
    """Return a hash [I] of the resolved path of each image."""
    # Resolving a path takes a call of the system for each of its folders: of a million images only
    # the folders are resolved, and the files that are links.
    parents: dict[str, tuple[str, set[str]]] = {}

    def resolve(name: str) -> str:
        """Return the path of an image without links."""
        below, base = posixpath.split(posixpath.normpath(name))
        if below not in parents:
            parents[below] = resolve_folder(folder / below)
        parent, links = parents[below]
        path = f"{parent}/{base}"
        return os.path.realpath(path) if base in links else path

    # Python's hashes are of 64 bits, and take a tenth of the memory of the paths.
    return np.fromiter((hash(resolve(name)) for name in names), dtype=np.int64, count=len(names))


def resolve_folder(folder: Path) -> tuple[str, set[str]]:
    """Return the path of a folder without links, and the names of the links in it."""
    try:
        path = os.path.realpath(folder)
    except ValueError:  # a name that no file can have, from the annotations
        return str(folder), set()
    try:
        with os.scandir(path) as entries:
            return path, {entry.name for entry in entries if entry.is_symlink()}
    except OSError:
        return path, set()


def shown(value: object) -> str:
    """Return a JSON value in one short line, for an error message."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "a value that is nested too deep"
    return text if len(text) <= 60 else text[:57] + "..."
