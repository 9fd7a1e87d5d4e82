"""What the readers of other formats share: their result, reading in parallel, and faults of files.

A reader finds the splits of a data set and lists the files of each. Processes read parts of these
lists. The parts become columns, in the order of the files, whatever the order in which they are
read. A fault does not end the reading: all are printed, then refused, or left out if the user asks.
"""

import codecs
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from common.console import print_line, progress
from common.errors import InputError, printable, require_few_classes
from common.files import MOST_BYTES as FILE_LIMIT
from common.files import read_bytes
from common.options import argument, flag, option
from common.processes import process_pool, run_tasks, usable_cores
from common.walk import Reach
from data.annotations import Annotations, TextColumn
from data.decoding import (
    AS_STORED,
    QUARTER_TURNS,
    fits_both_ways,
    is_quarter_turn,
    is_resized_copy,
    read_photo,
)
from data.json_lists import no_garbage_collection

FILES_AT_ONCE = 256  # for one process: some hundredths of a second's work
TASKS_PER_PROCESS = 4
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
        "data set, see above; without --from COCO-format JSON, a folder with COCO's or MLPerf's "
        "tree, or OpenImages' CSV of boxes",
        metavar="SOURCE",
    )
    images: Path | None = option(
        "folder of the images, where it is not found by itself; needed for a CSV",
        default=None,
        metavar="DIR",
    )
    skip_missing_images: bool = flag("skip labelled images that do not exist instead of stopping")
    skip_bad_labels: bool = flag(
        "with --from: leave out faulty labels, which are printed, instead of stopping"
    )
    allow_outside: bool = flag(
        "with --from: also take files outside of the data set's folder, to which its links or "
        "data.yaml lead"
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


@dataclass
class LabelPart:
    """The labels of N consecutive images, with B boxes; one without a name is left out."""

    sizes: NDArray[np.int32]  # [N, 2] width and height in pixels
    boxes_per_image: NDArray[np.int32]  # [N]
    boxes: NDArray[np.float64]  # [B, 4] xyxy in pixels
    classes: list[Any]  # B indices or names
    areas: NDArray[np.float64]  # [B] square pixels
    is_ignored: NDArray[np.bool_]  # [B] marked as difficult: iscrowd of COCO's format
    faults: list[str]  # the first `FAULTS_KEPT`: file, line and field
    counts: dict[str, int]  # of `faults`, and what is worth a note, such as polygons
    file_names: list[str]  # N, relative to the folder of images
    is_displayed: NDArray[np.bool_]  # [N] as `Annotations`

    def notes(self) -> list[str]:
        """Return what was noticed while the labels were read, a line each."""
        return [
            f"{text}: {self.counts[name]:,}" for name, text in NOTES.items() if name in self.counts
        ]


def labelled_images(
    read: Callable[[Sequence[Any]], LabelPart],
    files: Sequence[Any],
    *,
    split: str,
    skip_bad_labels: bool,
    console: Console,
) -> LabelPart:
    """Read the labels of images in parallel; print faults, and skip them or raise InputError."""
    starts = range(0, len(files), FILES_AT_ONCE)
    tasks = ((start, files[start : start + FILES_AT_ONCE]) for start in starts)
    processes = max(1, min(usable_cores(), len(starts)))
    parts: dict[int, LabelPart] = {}
    done = 0
    # The processes are copies of this one: they are started before the progress bar's thread.
    with (
        process_pool(processes) as pool,
        progress(console, f"reading {split} labels", total=len(files)) as advance,
    ):
        work = partial(read_task, read)
        results = run_tasks(pool, work, tasks, at_once=TASKS_PER_PROCESS * processes)
        for start, part in results:
            parts[start] = part
            done += len(part.sizes)
            advance(done, "")
    in_order = [parts.pop(start) for start in starts]
    part = join_parts(in_order)
    skip = skip_bad_labels and bool(part.file_names)  # something must be left
    settle_faults(part.faults, part.counts.get("faults", 0), skip=skip, console=console)
    return part


def read_task(
    read: Callable[[Sequence[Any]], LabelPart], task: tuple[int, Sequence[Any]]
) -> tuple[int, LabelPart]:
    """Return the labels of a task's images with its first row, by which parts are ordered."""
    with no_garbage_collection():
        return task[0], read(task[1])


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


def join_parts(parts: Sequence[LabelPart]) -> LabelPart:
    """Return all parts as one, without the images that are left out, which have no boxes."""
    counts: dict[str, int] = {}
    for part in parts:
        for name, number in part.counts.items():
            counts[name] = counts.get(name, 0) + number

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    names = [name for part in parts for name in part.file_names]
    kept = np.array([bool(name) for name in names], dtype=np.bool_)
    return LabelPart(
        sizes=joined("sizes")[kept],
        boxes_per_image=joined("boxes_per_image")[kept],
        boxes=joined("boxes"),
        classes=[name for part in parts for name in part.classes],
        areas=joined("areas"),
        is_ignored=joined("is_ignored"),
        faults=[fault for part in parts for fault in part.faults],
        counts=counts,
        file_names=[name for name in names if name],
        is_displayed=joined("is_displayed")[kept],
    )


class Box(NamedTuple):
    """A box of an image, in pixels."""

    category: int | str
    xyxy: tuple[float, float, float, float]
    area: float
    is_ignored: bool = False


class PartBuilder:
    """Collects the labels of the images of a part."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.numbers: list[int] = []
        self.boxes: list[Box] = []
        self.file_names: list[str] = []
        self.faults: list[str] = []
        self.counts: dict[str, int] = {}
        self.is_displayed: list[bool] = []

    def add(
        self,
        file_name: str,
        size: tuple[int, int],
        boxes: Sequence[Box],
        *,
        is_displayed: bool = False,
    ) -> None:
        """Add an image of a size (width, height)."""
        self.is_displayed.append(is_displayed)
        self.file_names.append(file_name)
        self.sizes.append(size)
        self.numbers.append(len(boxes))
        self.boxes += boxes

    def leave_out(self) -> None:
        """Add an image without a name, which is left out."""
        self.add("", (1, 1), [])

    def add_fault(self, fault: object) -> None:
        """Add a line about labels that cannot be used."""
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(str(fault))
        self.count("faults")

    def count(self, name: str, number: int = 1) -> None:
        """Count what is worth a note."""
        self.counts[name] = self.counts.get(name, 0) + number

    def finish(self) -> LabelPart:
        """Return the part."""
        return LabelPart(
            sizes=np.array(self.sizes, dtype=np.int32).reshape(-1, 2),
            boxes_per_image=np.array(self.numbers, dtype=np.int32),
            boxes=np.array([box.xyxy for box in self.boxes], dtype=np.float64).reshape(-1, 4),
            classes=[box.category for box in self.boxes],
            areas=np.array([box.area for box in self.boxes], dtype=np.float64),
            is_ignored=np.array([box.is_ignored for box in self.boxes], dtype=np.bool_),
            faults=self.faults,
            counts=self.counts,
            file_names=self.file_names,
            is_displayed=np.array(self.is_displayed, dtype=np.bool_),
        )


def make_annotations(part: LabelPart, classes: Mapping[int, str], ids: list[int]) -> Annotations:
    """Return columns; `classes` are names by category id, `ids` the category id of each box."""
    images = len(part.sizes)
    return Annotations(
        category_ids=np.array(list(classes), dtype=np.int64),
        category_names=tuple(classes.values()),
        image_ids=np.arange(1, images + 1),
        file_names=TextColumn.of(part.file_names),
        widths=part.sizes[:, 0],
        heights=part.sizes[:, 1],
        is_displayed=part.is_displayed,
        box_offsets=np.concatenate([[0], np.cumsum(part.boxes_per_image)]).astype(np.int64),
        boxes=part.boxes,
        box_category_ids=np.array(ids, dtype=np.int64),
        box_is_crowd=part.is_ignored,
        box_areas=part.areas,
        box_ids=np.arange(1, len(part.boxes) + 1),
    )


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
    try:
        content = read_bytes(file, most_bytes=most_bytes)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
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
        keep = np.isin(old.box_category_ids, [ids[name] for name in wanted])
        before = np.diff(old.box_offsets)
        after = np.diff(np.concatenate([[0], np.cumsum(keep)])[old.box_offsets])
        annotations = select_images(select_boxes(old, keep), (after > 0) | (before == 0))
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


def select_boxes(annotations: Annotations, keep: NDArray[np.bool_]) -> Annotations:
    """Return the annotations with some of the boxes; `keep` is [B]."""
    offsets = np.concatenate([[0], np.cumsum(keep)])[annotations.box_offsets]
    columns = ("boxes", "box_category_ids", "box_is_crowd", "box_areas", "box_ids")
    kept = {name: getattr(annotations, name)[keep] for name in columns}
    return replace(annotations, box_offsets=offsets.astype(np.int64), **kept)


def select_images(annotations: Annotations, keep: NDArray[np.bool_]) -> Annotations:
    """Return the annotations with some of the images, and their boxes; `keep` is [I]."""
    counts = np.diff(annotations.box_offsets)
    with_boxes = select_boxes(annotations, np.repeat(keep, counts))
    names = annotations.file_names
    return replace(
        with_boxes,
        image_ids=annotations.image_ids[keep],
        file_names=TextColumn.of(names[row] for row in np.flatnonzero(keep).tolist()),
        widths=annotations.widths[keep],
        heights=annotations.heights[keep],
        is_displayed=annotations.is_displayed[keep],
        box_offsets=np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.int64),
    )


def some(names: Sequence[str], most: int = 8) -> str:
    """Return the first names of a list, and how many more there are."""
    others = f" and {len(names) - most} more" if len(names) > most else ""
    return printable(", ".join(names[:most]) + others)
