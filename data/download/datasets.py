"""Download COCO 2017 and OpenImages: the files that are fetched, checked, and written.

COCO has a zip of annotations, of which a split's JSON is extracted whole or for chosen images, and
images one by one. OpenImages has CSV files of boxes and classes; the JSON is made of them and of
the images that they name.
"""

import csv
import io
import shutil
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from common.console import progress_in_bytes
from common.errors import InputError
from common.files import create_file, new_folder_beside, put_in_place, write_parts
from common.outputs import check_space
from data.annotations import SplitName, known_trees
from data.download.http import PART_SUFFIX, AttemptError, Check
from data.download.images import DownloadOptions, Images, fetch_file, fetch_images, tidy
from data.formats.labels import named_classes, nearest_name
from data.json_lists import list_parts, stream_lists
from data.openimages.boxes import (
    CORNERS,
    FLAGS,
    ClassList,
    image_id_texts,
    image_ids_with_boxes,
    resolve_classes,
)
from data.openimages.export import write_coco_json

BASE = "https://s3.amazonaws.com/images.cocodataset.org"
"""The bucket behind images.cocodataset.org, which has no certificate of its own."""
ARCHIVE = "annotations/annotations_trainval2017.zip"
MEMBERS = ("annotations/instances_train2017.json", "annotations/instances_val2017.json")
LARGEST_ARCHIVE = 1_000_000_000  # COCO's has 253 MB. [B]
COCO_BYTES_PER_IMAGE = 160_000


def download_coco(request: DownloadOptions, console: Console) -> dict[str, str]:
    """Download COCO's tree below `request.out`, or complete it.

    The zip of annotations is kept: a later call with another `limit` needs it.

    Returns the reason for each image that could not be downloaded, by `train2017/NAME`. Raises as
    `data.download.images.fetch_images`.
    """
    base, archive = request.mirror or BASE, request.out / ARCHIVE
    trees = [known_trees(request.out, split)["COCO's"] for split in request.splits]
    fetch_file(
        f"{base}/{ARCHIVE}",
        archive,
        check=partial(check_zip, members=MEMBERS, limit=LARGEST_JSON),
        limit=LARGEST_ARCHIVE,
        options=request.http,
        console=console,
    )
    splits = []
    for tree in trees:
        console.print(f"extracting {tree.annotations}", soft_wrap=True, markup=False)
        classes = None if request.classes == ["all"] else named_classes(request.classes)
        names = write_annotations(archive, tree.annotations, classes=classes, limit=request.limit)
        title, url = f"{tree.images.name}, images", f"{base}/{tree.images.name}"
        splits.append(Images(title, names, tree.images, url))
    failed: dict[str, str] = {}
    for images, missing in _fetch_splits(splits, COCO_BYTES_PER_IMAGE, request, console):
        failed |= {f"{images.folder.name}/{name}": reason for name, reason in missing.items()}
    return failed


def _fetch_splits(
    splits: Sequence[Images], bytes_each: int, request: DownloadOptions, console: Console
) -> Iterator[tuple[Images, dict[str, str]]]:
    """Fetch the images of each split; yield them with those that could not be downloaded."""
    # All splits are counted before the first download, so that space is checked for all of them.
    present = [tidy(images.folder) for images in splits]
    missing_count = sum(len(set(i.names) - names) for i, names in zip(splits, present, strict=True))
    check_space(request.out, images=missing_count, bytes_each=bytes_each, console=console)
    for images, names in zip(splits, present, strict=True):
        missing = fetch_images(images, present=names, options=request.http, console=console)
        yield images, missing


LARGEST_JSON = 2_000_000_000  # inflated, COCO's instances_train2017.json has 470 MB. [B]
LISTS = ("images", "annotations", "categories")


class Selection(NamedTuple):
    """The selected part of a split; file names are sorted."""

    image_ids: frozenset[int]
    category_ids: frozenset[int]
    file_names: tuple[str, ...]


def write_annotations(
    archive: Path, path: Path, *, classes: Collection[str] | None, limit: int | None
) -> tuple[str, ...]:
    """Write a split's JSON: unchanged from the zip, or the selected part.

    A part has the first `limit` images by file name, of those with a box of the `classes` (names of
    categories), their boxes of the classes, and these as categories; None: all. In the
    zip it is `annotations/` and the name of `path`. It is written unless it exists.
    Returns the images' file names, sorted.

    Raises:
        InputError: A class is not one of COCO's or no image has one, or the JSON is not COCO's.
    """
    try:
        with new_folder_beside(path) as folder, zipfile.ZipFile(archive) as members:
            source, part = folder / "whole.json", folder / "part.json"
            member = members.getinfo(f"annotations/{path.name}")
            if member.file_size > LARGEST_JSON:
                raise InputError(
                    f"{archive}: {member.filename} has {member.file_size:,} bytes uncompressed, "
                    f"more than the limit of {LARGEST_JSON:,}; remove it, download again"
                )
            # A file as long as the zip's member is the whole split; a selection is shorter.
            if path.is_file() and path.stat().st_size == member.file_size:
                source = path
            else:
                with (
                    members.open(member) as compressed,
                    create_file(source) as target,
                ):
                    shutil.copyfileobj(compressed, target, 1 << 20)
            selection = select(source, classes=classes, limit=limit)
            if classes is not None or limit is not None:
                _write_selection(source, selection, part)
                source = part
            if source != path:
                put_in_place(source, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{archive}: {path.name}: not COCO's annotations: {error!r}; remove it, download again"
        ) from error
    return selection.file_names


def select(path: Path, *, classes: Collection[str] | None, limit: int | None) -> Selection:
    """Return the selected images and categories; arguments as for `write_annotations`."""
    id_of_name: dict[str, int] = {}
    image_ids_by_class: dict[int, set[int]] = defaultdict(set)
    images: list[tuple[str, int]] = []
    for list_name, entries in stream_lists(path, LISTS):
        if list_name == "categories":
            id_of_name |= {entry["name"]: entry["id"] for entry in entries}
        elif list_name == "images":
            images += [(_plain(entry["file_name"], path), entry["id"]) for entry in entries]
        elif classes is not None:
            for entry in entries:
                image_ids_by_class[entry["category_id"]].add(entry["image_id"])
    for name in classes or ():
        if name not in id_of_name:
            hint = nearest_name(name, id_of_name) or f"; they are {', '.join(id_of_name)}"
            raise InputError(f"--classes: {name!r} is not a class of COCO{hint}")
    category_ids = frozenset(
        int(category_id)
        for name, category_id in id_of_name.items()
        if classes is None or name in classes
    )
    if classes is not None:
        selected = set().union(*(image_ids_by_class[category_id] for category_id in category_ids))
        images = [(name, image_id) for name, image_id in images if image_id in selected]
    if not images:
        raise InputError(f"--classes: no image of {path.name} has a box of these classes")
    first = sorted(images)[:limit]
    return Selection(
        frozenset(image_id for _, image_id in first), category_ids, tuple(name for name, _ in first)
    )


def _write_selection(source: Path, selection: Selection, path: Path) -> None:
    """Copy the selected entries one by one, in the file's order."""
    image_ids, category_ids = selection.image_ids, selection.category_ids
    keep = {
        "images": lambda entry: entry["id"] in image_ids,
        "annotations": lambda entry: (
            entry["image_id"] in image_ids and entry["category_id"] in category_ids
        ),
        "categories": lambda entry: entry["id"] in category_ids,
    }
    chosen = (
        (name, list(filter(keep[name], entries))) for name, entries in stream_lists(source, LISTS)
    )
    lists = (
        (name, (entries for _, entries in blocks))
        for name, blocks in groupby(chosen, key=itemgetter(0))
    )
    write_parts(path, list_parts({"info": {"description": "a part of COCO 2017"}}, lists))


def _plain(name: str, path: Path) -> str:
    """Return the name; raise InputError unless it is a plain file name."""
    is_plain = name == Path(name).name and not name.startswith(".") and name.isprintable()
    if not name or not is_plain or name.endswith(PART_SUFFIX):
        raise InputError(f"{path}: file_name {name!r} is not a plain file name")
    return name


IMAGES = "https://s3.amazonaws.com/open-images-dataset"
"""The Common Visual Data Foundation's copies, of at most 1024 pixels a side."""
TABLES = "https://storage.googleapis.com/openimages"
CLASS_DESCRIPTIONS = "v5/class-descriptions-boxable.csv"
BOXES: dict[SplitName, str] = {
    "train": "v6/oidv6-train-annotations-bbox.csv",
    "validation": "v5/validation-annotations-bbox.csv",
}
LARGEST_TABLE = 10_000_000_000  # the largest, of the boxes to train on, has 2.3 GB. [B]
OPENIMAGES_BYTES_PER_IMAGE = 300_000


def download_openimages(request: DownloadOptions, console: Console) -> dict[str, str]:
    """Download MLPerf's tree of OpenImages below `request.out`, or complete it.

    Returns the reason for each image that could not be downloaded, by `train/data/NAME`; the JSON
    files are written without these. Raises as `data.download.images.fetch_images`.
    """
    columns = ("ImageID", "LabelName", *CORNERS, *FLAGS)
    descriptions = table(request.out, CLASS_DESCRIPTIONS)
    checks: dict[str, Check] = {CLASS_DESCRIPTIONS: check_class_descriptions}
    checks |= {BOXES[split]: partial(check_csv, columns=columns) for split in request.splits}
    for name, check in checks.items():
        path = table(request.out, name)
        fetch_file(
            f"{request.mirror}/{path.name}" if request.mirror else f"{TABLES}/{name}",
            path,
            check=check,
            limit=LARGEST_TABLE,
            options=request.http,
            console=console,
        )
    class_list = resolve_classes(request.classes, descriptions)
    splits = [_choose(split, class_list, request, console) for split in request.splits]
    failed: dict[str, str] = {}
    fetched = _fetch_splits(splits, OPENIMAGES_BYTES_PER_IMAGE, request, console)
    for split, (images, missing) in zip(request.splits, fetched, strict=True):
        failed |= {f"{split}/data/{name}": reason for name, reason in missing.items()}
        # Without any image there is nothing to export, which write_coco_json refuses.
        if len(missing) < len(images.names):
            # Of all downloaded images, from this call and earlier ones.
            write_coco_json(
                table(request.out, BOXES[split]),
                descriptions,
                classes=request.classes,
                images=images.folder,
                out=known_trees(request.out, split)["MLPerf's OpenImages"].annotations,
                skip_missing_images=True,
                overwrite=True,
                console=console,
            )
    return failed


def table(out: Path, name: str) -> Path:
    """Return the target path of a CSV file."""
    return out / "csv" / Path(name).name


def _choose(
    split: SplitName, class_list: ClassList, request: DownloadOptions, console: Console
) -> Images:
    """Return the images of a split that have a box of the classes."""
    base = request.mirror or IMAGES
    boxes = table(request.out, BOXES[split])
    size = boxes.stat().st_size
    with progress_in_bytes(console, f"{boxes.name}: selecting images", total=size) as advance:
        ids = image_ids_with_boxes(boxes, class_list, advance=advance)
    if not len(ids):
        raise InputError(f"--classes: no image of {boxes.name} has a box of these classes")
    return Images(
        title=f"{split}, images",
        names=tuple(f"{text}.jpg" for text in image_id_texts(ids[: request.limit])),
        folder=known_trees(request.out, split)["MLPerf's OpenImages"].images,
        url=f"{base}/{split}",
    )


def check_zip(path: Path, *, members: Iterable[str], limit: int) -> None:
    """Accept a zip with these members, intact and each of at most `limit` uncompressed bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in members:
                # zipfile stops reading at this declared size, even if more bytes could follow.
                size = archive.getinfo(name).file_size
                if size > limit:
                    raise AttemptError(
                        f"not the expected zip: {name} has {size:,} bytes uncompressed, more "
                        f"than the limit of {limit:,}"
                    )
                with archive.open(name) as member:
                    # zipfile compares the CRC-32 at a member's end. testzip() would also read the
                    # members that are not used.
                    while member.read(1 << 20):
                        pass
    except KeyError as error:
        raise AttemptError(f"not the expected zip: {error.args[0]}") from error
    # RuntimeError: an encrypted member or, as NotImplementedError, an unknown compression.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise AttemptError(f"damaged zip: {error}") from error


def check_csv(path: Path, *, columns: Iterable[str]) -> None:
    """Accept a CSV file whose header has these columns and whose last line is complete."""
    first, last = end_lines(path)
    missing = [name for name in columns if name not in first]
    if missing:
        raise AttemptError(f"not the expected CSV: no column {missing[0]} in {first[:4]}")
    if len(last) != len(first):
        raise AttemptError("the last line of the CSV is incomplete")


def check_class_descriptions(path: Path) -> None:
    """Accept OpenImages' labels and names: `/m/011k07,Tortoise`, with or without a header."""
    first, last = end_lines(path)
    if len(first) != 2 or not (first[0].startswith("/") or first[0] == "LabelName"):
        raise AttemptError(f"not the expected CSV: it starts with {first[:4]}")
    if len(last) != 2:
        raise AttemptError("the last line of the CSV is incomplete")


LONGEST_LINE = 4096


def end_lines(path: Path) -> tuple[list[str], list[str]]:
    """Return the fields of a CSV file's first and last line; the file may be of gigabytes."""
    with path.open("rb") as file:
        # A file without newlines must not be read as a whole.
        first = file.readline(LONGEST_LINE)
        file.seek(-min(LONGEST_LINE, path.stat().st_size), io.SEEK_END)
        last = file.read().splitlines()[-1:]
    lines = [line.decode("utf-8-sig", "replace") for line in (first, *last)]
    fields = list(csv.reader(lines)) or [[]]
    return fields[0], fields[-1]
