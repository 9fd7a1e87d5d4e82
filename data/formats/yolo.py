"""YOLO's format: a text file for each image, and the names of the classes in one file.

A line is `class x y width height`: the class's index, the box's centre and its sides, as shares of
the image's width and height. A line with more numbers is a polygon (`class x1 y1 x2 y2 x3 y3 …`,
also the four corners of a rotated box), whose enclosing box is taken, or has key points after the
box: with `kpt_shape` in `data.yaml`, or where the numbers show it. An image without a file of
labels has no boxes.

The names are in `data.yaml` (Ultralytics, Roboflow), or, where nothing divides the images into
splits, in `classes.txt` (LabelImg, Label Studio) or `obj.names` (Darknet, CVAT).

What these files and links name is read if it is in the data set's folder (`common/walk.py`).
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console

from common.errors import InputError
from common.files import read_text
from common.walk import OUTSIDE, LeftOut, Reach, walk_folders
from common.yaml_text import read_yaml
from data.annotations import SLACK, Annotations, spellings
from data.decoding import AS_STORED, SUFFIXES, displayed_size, read_photo
from data.formats.labels import (
    MOST_BYTES,
    NOTES,
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
    number,
    quoted,
    read_class_names,
    read_list,
    require_distinct,
)
from data.packed import list_images

NAME_FILES = ("classes.txt", "obj.names")
POLYGON = 7  # numbers of a triangle's line, the shortest polygon
CERTAIN = 10
"""So many lines with points inside of a box are no chance: of polygons about half are like that."""
FIELDS = ("x centre", "y centre", "width", "height")


@dataclass(frozen=True)
class YoloSet:
    """A data set: its classes, and the folders or lists of the images of each split."""

    source: Path  # the file with the names
    names: Mapping[int, str]
    splits: Mapping[str, Sequence[Path]]
    keypoint_numbers: int | None  # numbers after a box; 0: none, None: not known
    reach: Reach
    moved: tuple[Path, Path] | None = None  # the folder `--images`, and that of its labels


def read_yolo(
    options: LabelOptions, check_names: CheckNames, console: Console
) -> list[LabelledSplit]:
    """Read all splits of a data set in YOLO's format.

    The source is `data.yaml`, or a folder with it or with a list of names; `images` replaces the
    folder of images, of a set that is not split; labels are then in the source too.

    Raises:
        InputError: The first faulty file with line and field; the names, a folder or all labels are
            missing; or an image is; a path leads out of the data set's folder.
    """
    found = find_set(options)
    check_names(found.splits, ())
    read, counts = read_splits(found, options, console)
    numbers = guess_keypoints(found.source, counts)
    if numbers:
        labelled = replace(found, keypoint_numbers=numbers)
        read, _ = read_splits(labelled, options, console)
        for split in read:
            split.notes.append(f"{NOTES['guessed']}: all with {numbers + 5} columns")
    return read


def read_splits(
    found: YoloSet, options: LabelOptions, console: Console
) -> tuple[list[LabelledSplit], Counter[str]]:
    """Read all splits of a data set; return also what was counted in them."""
    read, counts = [], Counter[str]()
    for name, entries in found.splits.items():
        left_out = LeftOut()
        folder, files, listed = images_of_split(
            entries, found.reach, left_out, skip_missing_images=options.skip_missing_images
        )
        if not files:
            entry = ", ".join(map(str, entries))
            raise InputError(
                f"{entry}: no image; expected JPEG, PNG, WebP, BMP, TIFF or GIF files"
                f"{left_out.reason()}"
            )
        part = labelled_images(
            partial(read_labels, folder, found), files, split=name, options=options, console=console
        )
        counts.update(part.counts)
        part.counts.update(listed)
        if part.counts["without"] == len(files):
            first = folder / files[0]
            looked_for = " or ".join(label_files(first, found.moved))
            raise InputError(f"{first}: no image has a file of labels; looked for {looked_for}")
        notes = part.notes()
        images = [os.path.join(folder, file) for file in files]  # noqa: PTH118
        orphans = labels_without_image(entries, images, found)
        if orphans:
            notes.append(
                f"files of labels without an image (left out): {len(orphans):,}, first {orphans[0]}"
            )
        notes += left_out.notes()
        annotations = part.annotations(found.names, part.boxes["category"])
        read.append(LabelledSplit(name, annotations, folder, notes))
    return read, counts


def guess_keypoints(source: Path, counts: Counter[str]) -> int:
    """Return how many numbers follow each box, where lines are no polygons; 0 if they are.

    Lines are boxes with key points if all are as long, and in all the points are in the box that
    the first four numbers would be. Raises InputError if there are too few lines to tell.
    """
    lengths = [int(name.split()[1]) for name in counts if name.startswith("polygons ")]
    polygons, like_boxes = counts["polygons"], counts["like boxes"]
    if len(lengths) != 1 or not like_boxes or like_boxes <= 0.9 * polygons:
        return 0
    if like_boxes == polygons and (polygons >= CERTAIN or counts["flat"] == polygons):
        return lengths[0] - len(FIELDS)
    raise InputError(
        f"{source}: {polygons:,} lines with {lengths[0] + 1} columns may be polygons, or boxes "
        f"with key points; say which in data.yaml: kpt_shape: [0, 2] for polygons, "
        f"[{(lengths[0] - len(FIELDS)) // 2}, 2] for key points"
    )


def find_set(options: LabelOptions) -> YoloSet:
    """Find the names and the splits."""
    source, images = options.source, options.images
    named_by_user = [source if source.is_dir() else source.parent]
    if images is not None:  # whose labels may be in a folder beside it
        named_by_user += [Path(file).parent for file in label_files(images / "any")]
    reach = options.reach(*named_by_user)
    if source.is_file():
        file = source
    else:
        if not source.is_dir():
            raise InputError(f"{source}: does not exist; give data.yaml or the data set's folder")
        yamls = sorted([*source.glob("*.yaml"), *source.glob("*.yml")])
        named = [file for file in yamls if file.stem in ("data", "dataset")] or yamls
        if len(named) > 1:
            names = ", ".join(file.name for file in named)
            raise InputError(f"{source}: has several YAML files ({names}); give one of them")
        lists = [
            folder / name
            for folder in (source, source / "labels", source / "train")
            for name in NAME_FILES
            if (folder / name).is_file()
        ]
        if not named and not lists:
            raise InputError(
                f"{source}: no names of classes: expected data.yaml, {' or '.join(NAME_FILES)}"
            )
        are_moved = images is not None and lists
        file = reach.require(named[0] if named and not are_moved else lists[0])
    if file.suffix in (".yaml", ".yml"):
        if images is not None:
            raise InputError(f"--images: {file} names the images; change it there")
        return set_of_yaml(file, reach)
    root = source if source.is_dir() else file.parent
    classes = read_class_names(file, read_list(file))
    folder = images or root
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder of images")
    below = (root / "labels", root / "train" / "labels")  # the latter is Roboflow's
    labels = next((place for place in below if place.is_dir()), root)
    moved = None if images is None else (images, labels)
    return YoloSet(file, classes, {WHOLE: [folder]}, None, reach, moved)


def set_of_yaml(file: Path, reach: Reach) -> YoloSet:
    """Read `data.yaml` and find what it names."""
    content = read_yaml(read_list(file), str(file), texts=("names",))
    if not isinstance(content, dict):
        raise InputError(f"{file}: expected the fields names, train and val of YOLO's data.yaml")
    names = class_names(file, content.get("names"), content.get("nc"))
    root = content.get("path")
    if root is not None and not isinstance(root, str):
        raise InputError(f"{file}: path: expected a folder, found {quoted(str(root))}")
    splits: dict[str, list[Path]] = {}
    for key, value in content.items():
        name = SPLIT_NAMES.get(str(key))
        if name is None or value in (None, "", []):
            continue
        entries = value if isinstance(value, list) else [value]
        if not all(isinstance(entry, str) for entry in entries):
            raise InputError(f"{file}: {key}: expected a path or a list of paths")
        splits.setdefault(name, []).extend(
            find_entry(file, str(key), entry, root=root, reach=reach) for entry in entries
        )
    if not splits:
        raise InputError(f"{file}: train: missing; expected the folder of the training images")
    shape = content.get("kpt_shape")
    keypoint_numbers = None
    if shape is not None:
        if not (
            isinstance(shape, list)
            and len(shape) == 2
            and all(type(size) is int and 0 <= size < 10_000 for size in shape)
        ):
            raise InputError(f"{file}: kpt_shape: expected two numbers, found {quoted(str(shape))}")
        keypoint_numbers = shape[0] * shape[1]
    return YoloSet(file, names, splits, keypoint_numbers, reach)


def class_names(file: Path, names: Any, number_of_classes: Any) -> dict[int, str]:
    """Return the names by index, of a list, or of a mapping of indices to names."""
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise InputError(f"{file}: names: expected a list of class names, or index: name")
    by_index = {}
    for index, name in names.items():
        text = str(index)
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InputError(f"{file}: names: the index {quoted(text)} is not a whole number")
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{file}: names[{text}]: expected a name, found {quoted(str(name))}")
        if int(text) in by_index:
            raise InputError(f"{file}: names: the index {int(text)} is there twice")
        by_index[int(text)] = name.strip()
    require_distinct(f"{file}: names", list(by_index.values()))
    if number_of_classes not in (None, len(by_index)):
        raise InputError(
            f"{file}: nc: is {quoted(str(number_of_classes))}, but there are {len(by_index)} names"
        )
    return dict(sorted(by_index.items()))


def find_entry(file: Path, key: str, entry: str, *, root: str | None, reach: Reach) -> Path:
    """Return the folder, or the list of images, that a field of `data.yaml` names.

    Paths begin at `path`, and that at the file. Roboflow writes `../train/images` for a folder
    beside the file, and other programs paths of the machine on which they ran.
    """
    roots = [file.parent / root, Path(root)] if root else []
    beside = file.parent / entry.removeprefix("../")
    candidates = [*(folder / entry for folder in (*roots, file.parent)), beside]
    present = [path for path in candidates if os.path.exists(path)]  # noqa: PTH110 - any name
    if present and reach.covers(present[0]):
        return present[0]
    # Without the user's word `../` is Roboflow's.
    if beside in present and entry.startswith("../") and reach.covers(beside):
        return beside
    # Parts of a path of another machine.
    below = (file.parent / name for name in ([] if present else spellings(entry)))
    for path in below:
        if os.path.exists(path):  # noqa: PTH110 - any name
            return reach.require(path)
    if present:
        raise InputError(f"{file}: {key}: {present[0]} {reach.describe_outside()}")
    looked_for = ", ".join(dict.fromkeys(map(str, candidates)))
    if SPLIT_NAMES[key] != "train":  # which must be there
        looked_for += "; else take the line out"
    raise InputError(f"{file}: {key}: {quoted(entry)} does not exist; looked for {looked_for}")


def images_of_split(
    entries: Sequence[Path], reach: Reach, left_out: LeftOut, *, skip_missing_images: bool
) -> tuple[Path, list[str], Counter[str]]:
    """Return a folder, images relative to it, and how many paths are `missing`, `shortened`."""
    if len(entries) == 1 and entries[0].is_dir():
        names = list(list_images(entries[0], reach, left_out, suffixes=SUFFIXES))
        return entries[0], names, Counter()
    paths: list[str] = []
    counts: Counter[str] = Counter()
    for entry in entries:
        if entry.is_dir():
            below = list_images(entry, reach, left_out, suffixes=SUFFIXES)
            paths += [str(entry / name) for name in below]
            continue
        for line, path, is_shortened in images_of_list(entry, reach):
            fault = reach.fault(path)
            if fault is None:
                paths.append(path)
                counts.update(["shortened"] * is_shortened)
            elif skip_missing_images and reach.covers(path):
                counts["missing"] += 1
            elif skip_missing_images:
                left_out.add(OUTSIDE, path)
            else:
                # A file from elsewhere may be no list at all: none of its text is shown.
                image = path if reach.has(entry) else "the image"
                raise InputError(
                    f"{entry}: line {line}: {image} {fault}; skip such images with "
                    "--skip-missing-images"
                )
    paths = list(dict.fromkeys(map(os.path.abspath, paths)))
    if not paths:
        return entries[0], [], counts
    folder = Path(os.path.commonpath([os.path.dirname(path) for path in paths]))  # noqa: PTH120
    return folder, [os.path.relpath(path, folder) for path in paths], counts


def images_of_list(file: Path, reach: Reach) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and the path of each image of a list, and whether the path is shortened.

    Paths begin at the list's folder, or where the program is called. CVAT puts `data/` in front,
    other programs the folders of their machine.
    """
    folder = str(file.parent)
    for place, line in enumerate(map(str.strip, read_list(file).splitlines()), start=1):
        if line:
            beside = os.path.join(folder, line)  # noqa: PTH118
            known = (beside, os.path.join(folder, line.removeprefix("data/")), line)  # noqa: PTH118
            below = (f"{folder}/{name}" for name in spellings(line))
            path = next((path for path in (*known, *below) if reach.fault(path) is None), None)
            present = (path for path in known if os.path.lexists(path))
            yield place, path or next(present, beside), path is not None and path not in known


def label_files(image: Path | str, moved: tuple[Path, Path] | None = None) -> list[str]:
    """Return where an image's labels may be: beside it, or in `labels` instead of `images`."""
    beside = f"{os.path.splitext(image)[0]}.txt"  # noqa: PTH122
    in_labels = exchange_folder(beside, "images", "labels")
    files = [beside] if in_labels is None else [in_labels, beside]
    if moved is not None:
        files.insert(0, os.path.join(moved[1], os.path.relpath(beside, moved[0])))  # noqa: PTH118
    return files


def exchange_folder(path: str, old: str, new: str) -> str | None:
    """Return a path with another name for its last folder `old`; None if it has no such folder."""
    # A relative path may begin with the folder.
    before, found, after = f"/{path}".rpartition(f"/{old}/")
    return f"{before}/{new}/{after}"[1:] if found else None


def labels_without_image(
    entries: Sequence[Path], images: Sequence[str], found: YoloSet
) -> list[str]:
    """Return the files of labels near some images that are of no image at all, in order.

    `entries` are the folders and lists of a split, `images` the paths of its images. A text is a
    file of labels if its first line is one: notes may lie beside images.
    """
    reach = found.reach
    labels = [file for image in images for file in label_files(image, found.moved)]
    folders = {os.path.dirname(file) or "." for file in labels}  # noqa: PTH120
    for entry in entries:
        if entry.is_dir():  # also folders of labels of which every image is missing
            for file in label_files(entry / "any", found.moved):
                top = Path(file).parent
                if reach.covers(top) and top.is_dir():
                    walk = walk_folders(top, reach, LeftOut(), suffixes=(".txt",))
                    folders |= {os.path.join(top, folder.below) for folder in walk}  # noqa: PTH118
    with_image = {os.path.splitext(os.path.normpath(file))[0] for file in (*images, *labels)}  # noqa: PTH122

    @cache
    def images_in(folder: str) -> set[str]:
        """Return the images in a folder, without suffix."""
        names = list_folder(folder or ".")
        return {os.path.splitext(name)[0] for name in names if name.lower().endswith(SUFFIXES)}  # noqa: PTH122

    def has_image(stem: str) -> bool:
        folder, name = os.path.split(stem)
        return stem in with_image or name in images_in(folder)

    orphans = []
    for folder in sorted({os.path.normpath(folder) for folder in folders}):
        for name in list_folder(folder):
            stem, suffix = os.path.splitext(os.path.normpath(os.path.join(folder, name)))  # noqa: PTH118, PTH122
            if suffix != ".txt":
                continue
            in_images = exchange_folder(stem, "labels", "images")
            if has_image(stem) or (in_images is not None and has_image(in_images)):
                continue
            if reach.covers(f"{stem}{suffix}") and begins_with_label(Path(folder, name)):
                orphans.append(f"{stem}{suffix}")
    return orphans


def list_folder(folder: str) -> list[str]:
    """Return the names in a folder, in order; none if it does not exist."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []  # noqa: PTH112, PTH208


def begins_with_label(file: Path) -> bool:
    """Return whether the first line of a text is a label: five numbers or more."""
    try:
        text = read_text(file, most_bytes=MOST_BYTES)
    except (OSError, UnicodeDecodeError):
        return False
    columns = text.lstrip().partition("\n")[0].split()
    return len(columns) > len(FIELDS) and all(number(column) is not None for column in columns)


def read_labels(folder: Path, labelled: YoloSet, names: Sequence[str]) -> LabelPart:
    """Read the labels of some images, whose names are relative to the folder."""
    part = LabelPart()
    for name in names:
        path = os.path.join(folder, name)  # noqa: PTH118
        try:
            stored, orientation = read_photo(Path(path))
            file_of_labels, text = read_text_of(path, labelled)
        except InputError as fault:
            part.add_fault(fault)
            continue
        # Labelling tools show a photo as its EXIF orientation says, and so does YOLO.
        size = displayed_size(stored, orientation)
        is_displayed = orientation != AS_STORED
        part.counts.update({"turned": is_displayed, "without": file_of_labels is None})
        boxes, faults = [], 0
        for line, columns in enumerate(map(str.split, text.splitlines()), start=1):
            try:
                if columns:
                    boxes.append(parse_line(columns, labelled, size, part))
            except InputError as fault:
                part.add_fault(f"{file_of_labels}: line {line}: {fault}")
                faults += 1
        if boxes or not faults:
            part.add(name, size, boxes, is_displayed=is_displayed)
    return part.finish()


def read_text_of(image: str, labelled: YoloSet) -> tuple[str | None, str]:
    """Return an image's file of labels and its text; None and no text if there is no file."""
    for file in label_files(image, labelled.moved):
        if os.path.exists(file):  # noqa: PTH110
            return file, read_list(labelled.reach.require(Path(file)), most_bytes=MOST_BYTES)
    return None, ""


def parse_line(
    columns: Sequence[str], labelled: YoloSet, size: tuple[int, int], part: LabelPart
) -> Box:
    """Return the box of a line, in pixels; raise InputError with the field."""
    values = [number(column) for column in columns]
    length = len(columns) - 1
    keypoints = labelled.keypoint_numbers
    is_guessed = keypoints is None and has_visibility(values)
    is_polygon = not keypoints and not is_guessed and len(columns) >= POLYGON and length % 2 == 0
    if not (is_polygon or is_guessed) and length not in (4, 4 + (keypoints or 0)):
        expected = "5 (class x y width height), a polygon's 7, 9, …, or kpt_shape in data.yaml"
        if keypoints:
            expected = f"5 or, with kpt_shape, {5 + keypoints}"
        confidence = "; is the last one a confidence?" if length == 5 else ""
        raise InputError(f"{len(columns)} columns, expected {expected}{confidence}")
    index = values[0]
    if index is None or not index.is_integer():
        raise InputError(f"class: {quoted(columns[0])} is not a whole number")
    if int(index) not in labelled.names:
        raise InputError(
            f"class: {int(index)} is not in names of {labelled.source}, "
            f"{min(labelled.names)} to {max(labelled.names)}"
        )
    shares = []
    for column, value in enumerate(values[1:] if is_polygon else values[1:5]):
        field = f"{'xy'[column % 2]}{column // 2 + 1}" if is_polygon else FIELDS[column]
        if value is None:
            raise InputError(f"{field}: {quoted(columns[column + 1])} is not a number")
        if not -SLACK <= value <= 1 + SLACK or (column > 1 and value < 0 and not is_polygon):
            raise InputError(
                f"{field}: {value:g} is not from 0 to 1, a share of the image's "
                f"{'height' if column % 2 else 'width'}"
            )
        shares.append(value)
    if is_polygon:
        box = box_of_polygon(int(index), shares, size)
        part.counts["polygons"] += 1
        if keypoints is None:
            part.counts[f"polygons {length}"] += 1
            part.counts["like boxes"] += encloses(shares[:4], shares[4::2], shares[5::2])
            part.counts["flat"] += box.area == 0
        return box
    if length > 4:
        part.counts["guessed" if is_guessed else "keypoints"] += 1
    return box_of_shares(int(index), shares, size)


def has_visibility(values: Sequence[float | None]) -> bool:
    """Return whether a line has a box and key points in it, each with a mark of 0, 1 or 2."""
    points = values[5:]
    if not points or len(points) % 3 or None in values or not set(points[2::3]) <= {0, 1, 2}:
        return False
    labelled = [point for point in range(0, len(points), 3) if points[point + 2]]
    xs, ys = [points[point] for point in labelled], [points[point + 1] for point in labelled]
    return bool(labelled) and encloses(values[1:5], xs, ys)  # type: ignore[arg-type]


def encloses(box: Sequence[float], xs: Sequence[float], ys: Sequence[float]) -> bool:
    """Return whether centre and sides are a box inside the image that has all points in it.

    A point at 0, 0 is a key point that is not labelled; one at least must be.
    """
    labelled = [point for point in zip(xs, ys, strict=True) if point != (0, 0)]
    if not labelled:
        return False
    xs, ys = zip(*labelled, strict=True)
    for centre, side, values in ((box[0], box[2], xs), (box[1], box[3], ys)):
        low, high = centre - side / 2, centre + side / 2
        if side <= 0 or low < -SLACK or high > 1 + SLACK:
            return False
        if min(values) < low - SLACK or max(values) > high + SLACK:
            return False
    return True


def box_of_shares(index: int, shares: Sequence[float], size: tuple[int, int]) -> Box:
    """Return the box of centre and sides."""
    width, height = shares[2] * size[0], shares[3] * size[1]
    x, y = shares[0] * size[0] - width / 2, shares[1] * size[1] - height / 2
    return Box(index, (x, y, x + width, y + height), width * height)


def shares_of_box(box: Sequence[float], size: tuple[int, int]) -> list[float]:
    """Return centre and sides of a box, xyxy in pixels: what `box_of_shares` takes."""
    (x1, y1, x2, y2), (width, height) = box, size
    return [(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height]


def yolo_labels(annotations: Annotations, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield labels in Roboflow's layout, with six digits of shares, without images and scores.

    CVAT takes it as a zip, Label Studio takes its folder `train`, and LabelImg `train/labels`.
    """
    names, classes = annotations.file_names, annotations.category_names
    # A text of JSON is one of YAML.
    described = "".join(f"  {place}: {json.dumps(name)}\n" for place, name in enumerate(classes))
    yield "data.yaml", f"train: train.txt\nnames:\n{described}"
    yield "train.txt", "".join(f"./train/images/{name}\n" for name in names)
    for folder in ("train", "train/labels"):
        yield f"{folder}/{NAME_FILES[0]}", class_list(classes)
    for row, name in enumerate(names):
        text = ""
        for category, box in boxes_in(annotations, row):
            shares = shares_of_box(box, annotations.image_size(row)[::-1])
            text += f"{category - 1} {' '.join(f'{share:.6f}' for share in shares)}\n"
        yield f"train/labels/{os.path.splitext(name)[0]}.txt", text  # noqa: PTH122


def box_of_polygon(index: int, shares: Sequence[float], size: tuple[int, int]) -> Box:
    """Return the box around a polygon, with the polygon's area (the shoelace formula)."""
    xs = [share * size[0] for share in shares[0::2]]
    ys = [share * size[1] for share in shares[1::2]]
    twice = sum(
        x * next_y - next_x * y
        for x, y, next_x, next_y in zip(xs, ys, [*xs[1:], xs[0]], [*ys[1:], ys[0]], strict=True)
    )
    return Box(index, (min(xs), min(ys), max(xs), max(ys)), abs(twice) / 2)
