"""Pascal VOC's format: an XML file for each image, and lists of images for the splits.

Coordinates are VOC's: pixels are counted from 1, and `xmax` and `ymax` are the last pixels inside.
A box from 1 to 64 covers 64 pixels, here from 0 to 64. Other programs count from 0; where any box
of a data set begins below 1, all of its coordinates are taken as they are.

An object marked as `difficult` becomes a box with `iscrowd`: as in VOC's evaluation it counts
neither as found nor as missed, and training leaves it out.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NoReturn
from xml.parsers import expat
from xml.sax.saxutils import escape

import numpy as np
from rich.console import Console

from common.errors import InputError, require_few_classes
from common.files import or_unreadable, read_bytes
from common.walk import LeftOut, Reach, walk_files
from data.annotations import Annotations, enclosing_box, spellings
from data.coco_json import angle
from data.decoding import SUFFIXES, displayed_size, read_photo
from data.formats.labels import (
    MOST_BYTES,
    SPLIT_NAMES,
    WHOLE,
    Box,
    CheckNames,
    LabelledSplit,
    LabelOptions,
    LabelPart,
    boxes_in,
    class_list,
    labelled_images,
    mark_displayed,
    nearest_name,
    number,
    quoted,
    read_class_names,
    read_list,
)
from data.packed import list_images

CLASS_FILES = ("labelmap.txt", "classes.txt", "labels.txt")
"""Lists of the classes; the first is CVAT's, with colours behind the names."""
SIDES = ("xmin", "ymin", "xmax", "ymax")
IMAGE_FIELDS = ("filename", "size.width", "size.height")
OBJECT_FIELDS = ("name", "difficult", *(f"bndbox.{side}" for side in SIDES))
ATTRIBUTE = ("attributes", "attribute")
ROTATION = "rotation"
"""CVAT's attribute of a rotated box, in degrees about its centre."""
FIELDS = {
    **{tuple(name.split(".")): name for name in IMAGE_FIELDS},
    **{("object", *name.split(".")): name for name in OBJECT_FIELDS},
}
"""The fields that are read, by their path; a file may hold any number of others."""
LARGEST_SIDE = 1_000_000  # pixels; a larger one is a mistake
MOST_DEPTH = 20  # elements within each other; the parts of an object are 5 deep


@dataclass(frozen=True)
class VocSplit:
    """The XML files of a split, and where its images are."""

    name: str
    files: Sequence[Path]
    annotations: Path  # the folder of the XML files
    images: Path
    listed: Mapping[str, str]
    """The images in the folder, relative to it: by their names with and without suffix"""
    is_whole: bool  # has all XML files; where a list names them, other images are not its own
    left_out: LeftOut = field(default_factory=LeftOut)


def read_voc(
    options: LabelOptions, check_names: CheckNames, console: Console
) -> list[LabelledSplit]:
    """Read all splits of a data set in Pascal VOC's format.

    `source` is a folder with `Annotations/`, or with XML files beside the images, perhaps in
    folders `train`, `valid`, `test`.

    Raises:
        InputError: The first faulty file with line and field; there are no XML files; a class is
            not in the data set's list, an image is missing, or an XML file of a split is; a link
            in the place of a folder or list leads out of the data set's folder.
    """
    source = options.source
    if not source.is_dir():
        raise InputError(f"{source}: is not a folder; expected one with Annotations/ and images")
    reach = options.reach(source)
    listed = listed_classes(source, reach)
    splits = find_splits(source, options.images, reach)
    check_names([split.name for split in splits], ())
    fix = "set --images" if options.images is None else "give the folder that has them"
    parts = []
    for split in splits:
        read = partial(read_files, split, listed, options.skip_missing_images, fix)
        part = labelled_images(
            read, split.files, split=split.name, options=options, console=console
        )
        if not len(part.images):
            raise InputError(
                f"{split.images}: none of the labelled images exists; {fix}"
                f"{split.left_out.reason()}"
            )
        parts.append(part)
    # One list of classes for all splits: those of the file, else all that occur, by name.
    names = listed or sorted({name for part in parts for name in part.boxes["category"]})
    require_few_classes(source, len(names))
    if not names:
        raise InputError(f"{source}: no object in any XML file; a data set needs a class")
    ids = {name: place for place, name in enumerate(names, start=1)}
    from_one = all((part.boxes["xyxy"][:, :2] >= 1).all() for part in parts)
    labelled = []
    for split, part in zip(splits, parts, strict=True):
        if from_one:
            # The first pixel begins at 0; the last one ends at its number.
            part.boxes["xyxy"][:, :2] -= 1
            xyxy = part.boxes["xyxy"]
            part.boxes["area"] = np.prod(xyxy[:, 2:] - xyxy[:, :2], axis=1)
        notes = part.notes()
        names_read = set(part.images["file_name"])
        others = set(split.listed.values()) - names_read if split.is_whole else set()
        if others:
            notes.append(f"images without an XML file (left out): {len(others):,}")
        if not from_one:
            notes.append(
                "coordinates count from 0, not from 1 as VOC's do, since a box begins at 0"
            )
        annotations = part.annotations(
            dict(enumerate(names, start=1)), map(ids.__getitem__, part.boxes["category"])
        )
        notes += split.left_out.notes()
        labelled.append(LabelledSplit(split.name, annotations, split.images, notes))
    return mark_displayed(labelled, console)


def listed_classes(source: Path, reach: Reach) -> list[str] | None:
    """Return the classes of the data set's list, in its order; None if it has no list."""
    for file in (source / name for name in CLASS_FILES):
        if not file.is_file():
            continue
        text = read_list(reach.require(file))
        if file.name == CLASS_FILES[0]:
            # CVAT's lines are `name:colour:parts:actions`, below a comment.
            lines = [line.split(":")[0] for line in text.splitlines() if not line.startswith("#")]
            text = "\n".join(lines)
        names = read_class_names(file, text)
        return [name for name in names.values() if name != "background"]
    return None


def find_splits(source: Path, images: Path | None, reach: Reach) -> list[VocSplit]:
    """Find the XML files of each split."""
    if images is not None and not images.is_dir():
        raise InputError(f"--images: {images} is not a folder")
    annotations = source / "Annotations"
    if not annotations.is_dir():
        folders = [
            (SPLIT_NAMES[folder.name], folder)
            for folder in sorted(source.iterdir())
            if folder.name in SPLIT_NAMES and any(folder.glob("*.xml"))
        ]
        return [
            make_split(name, folder, images or folder, None, reach)
            for name, folder in folders or [(WHOLE, source)]
        ]
    folder = images or next(
        (source / name for name in ("JPEGImages", "images") if (source / name).is_dir()), source
    )
    lists = {file.stem: file for file in sorted((source / "ImageSets" / "Main").glob("*.txt"))}
    chosen = {SPLIT_NAMES[name]: lists[name] for name in lists if name in SPLIT_NAMES}
    if "train" not in chosen and "trainval" in lists:
        if "validation" in chosen:
            raise InputError(
                f"{lists['trainval']}: has the images of {chosen['validation'].name} too; add a "
                "train.txt with the others"
            )
        chosen = {"train": lists["trainval"], **chosen}
    if not chosen:
        # CVAT's list of a data set that it did not split.
        return [make_split(WHOLE, annotations, folder, lists.get("default"), reach)]
    return [make_split(name, annotations, folder, file, reach) for name, file in chosen.items()]


def make_split(
    name: str, annotations: Path, images: Path, listed: Path | None, reach: Reach
) -> VocSplit:
    """Return a split: the XML files of a list of names, or all in the folder and below."""
    by_name: dict[str, str] = {}
    left_out = LeftOut()
    for image in list_images(reach.require(images), reach, left_out, suffixes=SUFFIXES):
        by_name[image] = image
        by_name.setdefault(os.path.splitext(image)[0], image)  # noqa: PTH122
    if listed is None:
        below = walk_files(reach.require(annotations), reach, left_out, suffixes=(".xml",))
        files = sorted(annotations / file for file in below)
        if not files:
            raise InputError(
                f"{annotations}: contains no XML file; expected one for each image"
                f"{left_out.reason()}"
            )
        return VocSplit(name, files, annotations, images, by_name, True, left_out)
    files = []
    for place, line in enumerate(read_list(reach.require(listed)).splitlines(), start=1):
        if line.strip():
            file = annotations / f"{line.strip()}.xml"
            fault = reach.fault(file)
            if fault is not None:
                # A file from elsewhere may be no list at all: none of its text is shown.
                named = file if reach.has(listed) else "the XML file"
                raise InputError(f"{listed}: line {place}: {named} {fault}")
            files.append(file)
    if not files:
        raise InputError(f"{listed}: empty; expected a name on each line")
    return VocSplit(name, files, annotations, images, by_name, False, left_out)


def read_files(
    split: VocSplit,
    listed: Sequence[str] | None,
    skip_missing_images: bool,
    fix: str,
    files: Sequence[Path],
) -> LabelPart:
    """Read some XML files; `fix` is what to do about missing images."""
    part = LabelPart()
    known = None if listed is None else dict.fromkeys(listed)  # found without a search
    for file in files:
        faults = part.counts["faults"]
        try:
            file_name, size, boxes = parse_xml(file, known, part)
            image = find_image(file, split, file_name, fix, part)
            if 0 in size:
                size = displayed_size(*read_photo(split.images / image))
                part.counts["sizes"] += 1
        except InputError as fault:
            if skip_missing_images and isinstance(fault, MissingImageError):
                part.counts["missing"] += 1
            else:
                part.add_fault(fault)
            continue
        if part.counts["faults"] == faults or boxes:
            part.add(image, size, boxes)
    return part.finish()


class MissingImageError(InputError):
    """An XML file has no image."""


def find_image(file: Path, split: VocSplit, file_name: str, fix: str, part: LabelPart) -> str:
    """Return the image of an XML file, relative to the folder of images.

    It has the name of the XML file: the names in the files are often older, of before the images
    were renamed or copied. If no image has it, it is the one that the file names, unless that has
    an XML file of its own. Raises MissingImageError if there is none; `fix` is what to do then.
    """
    stem = os.path.splitext(file.relative_to(split.annotations))[0]  # noqa: PTH122
    names = spellings(file_name)
    beside = [f"{stem.rpartition('/')[0]}/{name}".lstrip("/") for name in names if "/" not in name]
    named = next((split.listed[name] for name in (*beside, *names) if name in split.listed), None)
    own, stem_named = split.listed.get(stem), os.path.splitext(named or "")[0]  # noqa: PTH122
    if named is not None and stem_named == stem:
        return named  # its suffix tells a.jpg from a.png
    if own is not None:
        part.counts["renamed"] += named is not None
        return own
    reason = f"is not in {split.images}"
    if named is not None:
        other = split.annotations / f"{stem_named}.xml"
        if not other.is_file():
            return named
        reason, fix = f"has an XML file of its own, {other}", "correct the name"
    raise MissingImageError(
        f"{file}: filename: {quoted(file_name or file.stem)} {reason}; {fix}, or skip with "
        f"--skip-missing-images{split.left_out.reason()}"
    )


Fields = dict[str, tuple[str, int]]  # text and line by path, such as `bndbox.xmin`


def parse_xml(
    file: Path, listed: Collection[str] | None, part: LabelPart
) -> tuple[str, tuple[int, int], list[Box]]:
    """Return file name, size and boxes of an XML file, and add its objects' faults to a part.

    A side of 0 is not known. `listed` are the classes of the data set's list. Raises InputError
    with line and field for a fault of the file itself.
    """
    with or_unreadable(file):
        content = read_bytes(file, most_bytes=MOST_BYTES)
    reader = read_xml(file, content, part)
    sides = []
    for name in ("width", "height"):
        # Some tools write 0 or nothing: the image has its size.
        text, line = reader.image.get(f"size.{name}", ("0", 0))
        side = number(text or "0")
        if side is None or not (side.is_integer() and 0 <= side <= LARGEST_SIDE):
            raise InputError(
                f"{file}: line {line}: size.{name}: expected the image's {name} in pixels, "
                f"found {quoted(text)}"
            )
        sides.append(int(side))
    size, boxes = (sides[0], sides[1]), []
    for place, (fields, line) in enumerate(reader.objects, start=1):
        try:
            where = f"object[{place}]", line
            boxes.append(parse_object(file, fields, where, size, listed=listed, part=part))
        except InputError as fault:
            part.add_fault(fault)
    return reader.image.get("filename", ("", 0))[0], size, boxes


def read_xml(file: Path, content: bytes, part: LabelPart) -> "XmlReader":
    """Return the fields of an XML file; raise InputError if it is none."""
    reader = XmlReader(file)
    try:
        reader.parse(content)
    except InputError:
        try:
            content.decode()
        except UnicodeDecodeError:
            reader = XmlReader(file, "iso-8859-1")
            reader.parse(content)
            part.counts["latin"] += 1
        else:
            raise
    return reader


def parse_object(
    file: Path,
    fields: Fields,
    place_of: tuple[str, int],
    size: tuple[int, int],
    *,
    listed: Collection[str] | None,
    part: LabelPart,
) -> Box:
    """Return the box of an object; `place_of` is its name in messages and its line.

    `size` is the image's width and height, with 0 where it is not known.
    """
    name, line = place_of
    category, place = fields.get("name", ("", line))
    if not category:
        raise InputError(f"{file}: line {place}: {name}.name: missing; expected the class")
    if listed is not None and category not in listed:
        # A search for the nearest name takes long: for the first fault only.
        nearest = "" if part.faults else nearest_name(category, listed)
        raise InputError(
            f"{file}: line {line}: {name}.name: {quoted(category)} is not in the data set's list "
            f"of classes{nearest}"
        )
    sides = [
        take_number(file, fields, f"bndbox.{side}", f"{name}.bndbox.{side}", line) for side in SIDES
    ]
    (x1, x2), (y1, y2) = sorted(sides[0::2]), sorted(sides[1::2])
    difficult, place = fields.get("difficult", ("0", line))
    if difficult.lower() not in ("", "0", "1", "false", "true", "unspecified"):
        found = quoted(difficult)
        raise InputError(f"{file}: line {place}: {name}.difficult: expected 0 or 1, found {found}")
    is_difficult = difficult.lower() in ("1", "true")
    if is_difficult:
        part.counts["difficult"] += 1
    if [x1, y1, x2, y2] != sides:
        part.counts["swapped"] += 1
    area = (x2 - x1) * (y2 - y1)
    degrees = angle(number(fields.get(ROTATION, ("", line))[0]))
    if degrees:
        part.counts["rotated"] += 1
        # Inside the image, whose first pixel is 1: a corner before it says nothing about the count.
        x1, y1, x2, y2 = enclosing_box((x1, y1, x2, y2), degrees)
        x1, y1 = max(x1, 1.0), max(y1, 1.0)
        x2, y2 = min(x2, size[0] or x2), min(y2, size[1] or y2)
    return Box(category, (x1, y1, x2, y2), area, is_difficult)


def take_number(file: Path, fields: Fields, path: str, name: str, line: int) -> float:
    """Return the number of a field; raise InputError if it is missing or another text."""
    if path not in fields:
        raise InputError(f"{file}: line {line}: {name}: missing; VOC's format requires it")
    text, place = fields[path]
    value = number(text)
    if value is None or abs(value) > LARGEST_SIDE:
        raise InputError(f"{file}: line {place}: {name}: {quoted(text)} is not a number of pixels")
    return value


class XmlReader:
    """Takes the fields of the image and of its objects from an XML file, with their lines.

    Expat's own events, not a tree, which has no lines. A file may not declare a document type: in
    it are the entities by which a small file becomes a large one, or reads others.
    """

    def __init__(self, file: Path, encoding: str | None = None) -> None:
        self.file = file
        self.image: Fields = {}
        self.objects: list[tuple[Fields, int]] = []
        self.attribute = ""  # the name of the last one
        self.path: list[str] = []
        self.text: list[str] = []
        self.parser = expat.ParserCreate(encoding)
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text.append
        self.parser.StartDoctypeDeclHandler = self.refuse_doctype

    def parse(self, content: bytes) -> None:
        """Read the whole file; raise InputError if it is not XML, or of another kind."""
        try:
            self.parser.Parse(content, True)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise InputError(f"{self.file}: line {error.lineno}: not XML: {reason}") from error
        except (ValueError, LookupError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.file}: not XML: {error}") from error  # its encoding

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        line = self.parser.CurrentLineNumber
        if not self.path and name != "annotation":
            raise InputError(
                f"{self.file}: line {line}: expected VOC's element annotation, found {quoted(name)}"
            )
        if len(self.path) == MOST_DEPTH:
            raise InputError(
                f"{self.file}: line {line}: more than {MOST_DEPTH} elements within each other; "
                "VOC's format has no such depth; remove them"
            )
        self.path.append(name)
        self.text.clear()
        if self.path == ["annotation", "object"]:
            self.objects.append(({}, line))

    def end(self, name: str) -> None:
        """End an element, and keep its text if it is a field."""
        # Parts of an object (`part`), which have boxes of their own, are at longer paths.
        field_name = FIELDS.get(tuple(self.path[1:]))
        if field_name is not None:
            fields = self.objects[-1][0] if self.path[1] == "object" else self.image
            text = "".join(self.text).strip()
            fields.setdefault(field_name, (text, self.parser.CurrentLineNumber))
        elif tuple(self.path[2:-1]) == ATTRIBUTE and self.path[1] == "object":
            text = "".join(self.text).strip()
            if name == "name":
                self.attribute = text
            elif name == "value" and self.attribute == ROTATION:
                self.objects[-1][0][ROTATION] = (text, self.parser.CurrentLineNumber)
        self.path.pop()
        self.text.clear()

    def refuse_doctype(self, *declaration: object) -> NoReturn:
        """Raise InputError for a document type, which may hold entities."""
        raise InputError(
            f"{self.file}: line {self.parser.CurrentLineNumber}: has a document type declaration "
            "(<!DOCTYPE), which VOC's format does not use; remove it"
        )


def pixels_of_box(box: Sequence[float], size: tuple[int, int]) -> list[int]:
    """Return first and last column and row of a box, xyxy: `SIDES`, from 1, at least one pixel."""
    first = [min(round(edge), side - 1) + 1 for edge, side in zip(box[:2], size, strict=True)]
    return [*first, *(max(round(edge), low) for edge, low in zip(box[2:], first, strict=True))]


def voc_labels(annotations: Annotations, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield an XML file for each image, in VOC's whole pixels, and the list of the classes."""
    names = list(map(escape, annotations.category_names))
    for row, file_name in enumerate(annotations.file_names):
        height, width = annotations.image_size(row)
        text = f"<annotation>\n  <filename>{escape(PurePosixPath(file_name).name)}</filename>\n"
        text += f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>\n"
        for category, box in boxes_in(annotations, row):
            pixels = zip(SIDES, pixels_of_box(box, (width, height)), strict=True)
            sides = "".join(f"<{side}>{pixel}</{side}>" for side, pixel in pixels)
            text += f"  <object>\n    <name>{names[category - 1]}</name>\n"
            text += f"    <difficult>0</difficult>\n    <bndbox>{sides}</bndbox>\n  </object>\n"
        yield f"{os.path.splitext(file_name)[0]}.xml", f"{text}</annotation>\n"  # noqa: PTH122
    yield CLASS_FILES[1], class_list(annotations.category_names)
