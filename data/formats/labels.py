"""What the readers of other formats share: their result, reading in parallel, and faults of files.

A reader finds the splits of a data set and lists the files of each. Processes read parts of these
lists. The parts become columns, in the order of the files, whatever the order in which they are
read. A fault does not end the reading: all are printed, then refused, or left out if the user asks.
"""

import codecs
import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from common.console import print_line, progress
from common.errors import InputError, printable, require_few_classes
from common.files import MOST_BYTES as FILE_LIMIT
from common.files import or_unreadable, read_bytes
from common.options import argument, flag, option
from common.walk import Reach
from common.wording import listed
from data.annotations import Annotations, TextColumn, offsets_of
from data.decoding import (
    AS_STORED,
    QUARTER_TURNS,
    fits_both_ways,
    is_quarter_turn,
    is_resized_copy,
    read_photo,
)
from data.parts import read_in_parts

FILES_AT_ONCE = 256  # for one process: some hundredths of a second's work
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""The names that programs give to splits, and ours."""
WHOLE = "all"
"""The name of a data set that is not split."""
CheckNames = Callable[[Collection[str], Collection[Path]], None]
"""Called by a reader with the names of the splits and their JSON files, before it reads labels."""
Reader = Callable[["LabelOptions", CheckNames, Console], "list[LabelledSplit]"]
"""Reads all splits of a data set in a format; raises InputError."""
Writer = Callable[[Annotations, Sequence[float]], Iterator[tuple[str, str]]]
"""Yields paths and texts of files with annotations, whose ids count from 1, and boxes' scores."""
MOST_BYTES = 10_000_000  # of a file with the labels of one image
FAULTS_KEPT, FAULTS_SHOWN = 1000, 20
SKIP_BAD = "--skip-bad-labels"
NOTES = {
    "without": "images without a file of labels (no boxes)",
    "polygons": "polygons (their enclosing boxes are taken)",
    "keypoints": "boxes with key points (left out)",
    "guessed": "lines without kpt_shape taken for boxes with key points",
    "turned": "photos that EXIF rotates or mirrors (labels are of the displayed photo)",
    "difficult": "difficult objects (iscrowd: left out of training)",
    "missing": "images that do not exist (skipped)",
    "shortened": "file names are shortened to the parts that exist",
    "renamed": "XML files whose filename is another image's (that of their own name is used)",
    "sizes": "images without a size in their labels (that of the displayed image is taken)",
    "rotated": "rotated boxes (their enclosing boxes are taken)",
    "swapped": "boxes whose corners are exchanged (put in order)",
    "latin": "files that are not UTF-8 (read as Latin-1)",
}
"""What is counted while labels are read."""


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """Which labels are read, and what is done with those that cannot be used."""

    source: Path = argument(
        "data set, see above",
        metavar="SOURCE",
    )
    images: Path | None = option(
        "folder of the images, where it is not found by itself; needed for a CSV",
        default=None,
        metavar="DIR",
    )
    skip_missing_images: bool = flag("skip labelled images that do not exist instead of stopping")
    skip_bad_labels: bool = flag("leave out faulty labels, which are printed, instead of stopping")
    allow_outside: bool = flag(
        "also take files outside of the data set's folder, to which its links or data.yaml lead"
    )

    def reach(self, *named_by_user: Path) -> Reach:
        """Return the folders whose files may be read: some, and that of the images."""
        images = [self.images] if self.images is not None else []
        return Reach.of(*named_by_user, *images, allow_outside=self.allow_outside)


@dataclass
class LabelledSplit:
    """A split as it was read: columns, and the folder that its file names are relative to."""

    name: str
    annotations: Annotations
    images: Path
    notes: list[str] = field(default_factory=list)  # what a user should know, a line each


class Box(NamedTuple):
    """A box of an image, in pixels: a row of `BOXES`."""

    category: int | str
    xyxy: tuple[float, float, float, float]
    area: float
    is_ignored: bool = False  # marked as difficult: iscrowd of COCO's format


# Rows as they are read; a file name is relative to the folder of images.
IMAGES = np.dtype([("file_name", "O"), ("size", "i4", 2), ("is_displayed", "?"), ("boxes", "i4")])
BOXES = np.dtype([("category", "O"), ("xyxy", "f8", 4), ("area", "f8"), ("is_ignored", "?")])


class LabelPart:
    """The labels of consecutive images: rows of N images, and of their B boxes."""

    def __init__(self) -> None:
        self.images: NDArray[np.void] = np.empty(0, IMAGES)
        self.boxes: NDArray[np.void] = np.empty(0, BOXES)
        self.faults: list[str] = []  # the first `FAULTS_KEPT`: file, line and field
        self.counts = Counter[str]()  # of `faults`, and what is worth a note, such as polygons
        self._images: list[tuple[str, tuple[int, int], bool, int]] = []
        self._boxes: list[Box] = []

    def add(
        self,
        file_name: str,
        size: tuple[int, int],
        boxes: Sequence[Box],
        *,
        is_displayed: bool = False,
    ) -> None:
        """Add an image of a size (width, height)."""
        self._images.append((file_name, size, is_displayed, len(boxes)))
        self._boxes += boxes

    def add_fault(self, fault: object) -> None:
        """Add a line about labels that cannot be used."""
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(str(fault))
        self.counts["faults"] += 1

    def finish(self) -> "LabelPart":
        """Turn what was added into rows; return the part."""
        self.images, self._images = np.array(self._images, IMAGES), []
        self.boxes, self._boxes = np.array(self._boxes, BOXES), []
        return self

    @classmethod
    def joined(cls, parts: Sequence["LabelPart"]) -> "LabelPart":
        """Return finished parts as one."""
        whole = cls()
        whole.images = np.concatenate([part.images for part in parts])
        whole.boxes = np.concatenate([part.boxes for part in parts])
        for part in parts:
            whole.faults += part.faults
            whole.counts.update(part.counts)
        return whole

    def notes(self) -> list[str]:
        """Return what was noticed while the labels were read, a line each."""
        return [
            f"{text}: {self.counts[name]:,}" for name, text in NOTES.items() if self.counts[name]
        ]

    def annotations(self, classes: Mapping[int, str], ids: Iterable[int]) -> Annotations:
        """Return columns; `classes` are names by category id, `ids` the category id of each box."""
        widths, heights = self.images["size"].T
        return Annotations(
            category_ids=np.array(list(classes), dtype=np.int64),
            category_names=tuple(classes.values()),
            image_ids=np.arange(1, len(self.images) + 1),
            file_names=TextColumn.of(self.images["file_name"]),
            widths=widths,
            heights=heights,
            is_displayed=self.images["is_displayed"],
            box_offsets=offsets_of(self.images["boxes"]),
            boxes=self.boxes["xyxy"],
            box_category_ids=np.fromiter(ids, dtype=np.int64, count=len(self.boxes)),
            box_is_crowd=self.boxes["is_ignored"],
            box_areas=self.boxes["area"],
            box_ids=np.arange(1, len(self.boxes) + 1),
        )


def labelled_images(
    read: Callable[[Sequence[Any]], LabelPart],
    files: Sequence[Any],
    *,
    split: str,
    options: LabelOptions,
    console: Console,
) -> LabelPart:
    """Read the labels of images in parallel; print faults, and skip them or raise InputError."""
    title = f"reading {split} labels"
    parts = read_in_parts(read, files, at_once=FILES_AT_ONCE, title=title, console=console)
    part = LabelPart.joined(parts)
    skip = options.skip_bad_labels and len(part.images) > 0  # something must be left
    settle_faults(part.faults, part.counts["faults"], skip=skip, console=console)
    return part


def settle_faults(faults: Sequence[str], number: int, *, skip: bool, console: Console) -> None:
    """Print the first of some faults; raise InputError about them unless they are skipped."""
    if not number:
        return
    if skip or number > 1:
        for fault in faults[:FAULTS_SHOWN]:
            print_line(console, printable(f"bad label: {fault}"))
        if number > FAULTS_SHOWN:
            print_line(console, f"bad label: {number - FAULTS_SHOWN:,} more")
    if skip:
        print_line(console, f"note: bad labels (skipped): {number:,}")
        return
    others = f"{number - 1:,} more, " if number > 1 else ""
    raise InputError(f"{faults[0]} ({others}{SKIP_BAD} leaves bad labels out)")


def mark_displayed(splits: Sequence[LabelledSplit], console: Console) -> list[LabelledSplit]:
    """Return splits that tell which photos their annotations show as EXIF displays them.

    Where a photo's stated size does not show it (square, upside down, mirrored), that of other
    photos does: a tool treats all alike. Images that cannot be read are for `data verify`.
    """
    turned: list[list[int]] = [[] for _ in splits]  # rows of each split
    unclear: list[list[int]] = [[] for _ in splits]
    stored = 0
    for place, split in enumerate(splits):
        names = split.annotations.file_names
        with progress(console, f"orientations of {split.name}", total=len(names)) as advance:
            for row, name in enumerate(names):
                with suppress(InputError):
                    (width, height), orientation = read_photo(split.images / name)
                    size, annotated = (height, width), split.annotations.image_size(row)
                    if orientation == AS_STORED:
                        pass
                    elif split.annotations.is_displayed[row]:  # the labels say so
                        turned[place].append(row)
                    elif orientation not in QUARTER_TURNS or fits_both_ways(size, annotated):
                        unclear[place].append(row)
                    elif is_quarter_turn(size, annotated):
                        turned[place].append(row)
                    else:
                        stored += is_resized_copy(size, annotated)
                advance(row + 1, "")
    are_displayed = any(turned) and not stored
    marked = []
    for place, split in enumerate(splits):
        shown = turned[place] + (unclear[place] if are_displayed else [])
        is_displayed = np.isin(np.arange(len(split.annotations)), shown)
        counts = {
            NOTES["turned"]: len(shown),
            "photos for which no size shows whether EXIF applies (read as stored)": 0
            if are_displayed
            else len(unclear[place]),
        }
        notes = [f"{text}: {number:,}" for text, number in counts.items() if number]
        annotations = replace(split.annotations, is_displayed=is_displayed)
        marked.append(replace(split, annotations=annotations, notes=[*split.notes, *notes]))
    return marked


def number(text: str) -> float | None:
    """Return a finite number, or None for any other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None  # NaN compares false


def quoted(text: str) -> str:
    """Return a text of a file for a message, in quotes and not long."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


MOST_COMPARED, LONGEST_COMPARED = 10_000, 100
"""Names that one is compared with, and its characters: ten times as many names take ten seconds."""


def nearest_name(name: str, known: Collection[str]) -> str:
    """Return `; did you mean …?` for a name that is not known, or nothing."""
    if len(known) > MOST_COMPARED or len(name) > LONGEST_COMPARED:
        return ""
    by_lower = {other.lower(): other for other in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[nearest[0]]!r}?" if nearest else ""


def read_list(file: Path, *, most_bytes: int = FILE_LIMIT) -> str:
    """Return the text of labels, names or paths, in UTF-8, UTF-16 with its mark, or Latin-1.

    Raises InputError if the file cannot be read.
    """
    with or_unreadable(file):
        content = read_bytes(file, most_bytes=most_bytes)
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def read_class_names(file: Path, text: str) -> dict[int, str]:
    """Return the names of a file with one on each line, by index.

    An empty line is an index without a class. Raises InputError for a name that is there twice.
    """
    lines = text.rstrip().split("\n")
    require_few_classes(file, len(lines))
    names = {index: line.strip() for index, line in enumerate(lines) if line.strip()}
    if not names:
        raise InputError(f"{file}: no class; expected a name on each line")
    require_distinct(file, list(names.values()))
    return names


def boxes_in(annotations: Annotations, row: int) -> Iterator[tuple[int, list[float]]]:
    """Return the category id and the corners, xyxy, of each box in an image."""
    rows = annotations.box_slice(row)
    ids, boxes = annotations.box_category_ids[rows].tolist(), annotations.boxes[rows].tolist()
    return zip(ids, boxes, strict=True)


def class_list(names: Sequence[str]) -> str:
    """Return the text that `read_class_names` reads."""
    return "".join(f"{printable(name)}\n" for name in names)


def named_classes(classes: Sequence[str]) -> list[str]:
    """Return the names of `--classes`: these, or those of one text file; raise as above."""
    if len(classes) == 1 and classes[0].endswith(".txt"):
        file = Path(classes[0])
        return list(read_class_names(file, read_list(file)).values())
    return list(classes)


def require_distinct(source: Path | str, names: Sequence[str]) -> None:
    """Raise InputError if a class has the name of another one."""
    seen = set()
    for name in names:
        if name in seen:
            raise InputError(f"{source}: the class {name!r} is listed twice; names must differ")
        seen.add(name)


def select_classes(splits: Sequence[LabelledSplit], wanted: Sequence[str]) -> list[LabelledSplit]:
    """Return the boxes of the wanted classes, in the order of these, with their ids.

    Images that have boxes of other classes only are left out; images without any box stay.
    Raises InputError for a name that is not a class, with the nearest one.
    """
    require_distinct("--classes", wanted)
    selected = []
    for split in splits:
        old = split.annotations
        ids = dict(zip(old.category_names, old.category_ids.tolist(), strict=True))
        for name in wanted:
            if name not in ids:
                advice = nearest_name(name, list(ids)) or f"; the classes are {some(list(ids))}"
                raise InputError(f"--classes: {name!r} is not a class of {split.name}{advice}")
        is_wanted = np.isin(old.box_category_ids, [ids[name] for name in wanted])
        annotations = old.select(boxes=is_wanted)
        without_others = np.diff(annotations.box_offsets) > 0
        annotations = annotations.select(images=without_others | (np.diff(old.box_offsets) == 0))
        annotations = replace(
            annotations,
            category_ids=np.array([ids[name] for name in wanted], dtype=np.int64),
            category_names=tuple(wanted),
        )
        without = len(old) - len(annotations)
        note = f"images with boxes of other classes only (left out): {without:,}"
        notes = [*split.notes, *([note] if without else [])]
        selected.append(replace(split, annotations=annotations, notes=notes))
    return selected


def merge_classes(splits: Sequence[LabelledSplit], pairs: Sequence[str]) -> list[LabelledSplit]:
    """Return the splits with the boxes of OLD as boxes of NEW, for each pair `OLD=NEW`.

    Categories of one name become the first one by `NAME=NAME`. Raises InputError for a name that is
    no class.
    """
    merged = list(splits)
    for pair in pairs:
        old_name, _, new_name = pair.partition("=")
        known = {name for split in merged for name in split.annotations.category_names}
        for name in (old_name, new_name):
            if name not in known:
                raise InputError(
                    f"--merge-classes: {pair!r}: {name!r} is not a class"
                    f"{nearest_name(name, known) or f'; the classes are {some(sorted(known))}'}"
                )
        for place, split in enumerate(merged):
            old = split.annotations
            names, ids = np.array(old.category_names, dtype=object), old.category_ids
            rows = np.flatnonzero(names == old_name)
            targets = np.flatnonzero(names == new_name)
            if not len(targets):
                continue  # a finding of `data verify`: the splits have other categories
            rows = rows[rows != targets[0]]
            box_ids = old.box_category_ids.copy()
            box_ids[np.isin(box_ids, ids[rows])] = ids[targets[0]]
            annotations = replace(
                old,
                category_ids=np.delete(ids, rows),
                category_names=tuple(np.delete(names, rows).tolist()),
                box_category_ids=box_ids,
            )
            merged[place] = replace(split, annotations=annotations)
    return merged


def some(names: Sequence[str], most: int = 8) -> str:
    """Return the first names of a list, and how many more there are."""
    return printable(listed(names, most))
