"""COCO's format in other layouts of folders than COCO's and MLPerf's own.

`_annotations.coco.json` beside the images of each split (Roboflow), `annotations/` with a file for
each split and folders of images beside it (COCO's forks, CVAT), `result.json` with `images/` (Label
Studio). The folder of images is where the files are whose names the annotations have; where only
the last parts of these names exist, they are shortened.
"""

import os
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
from rich.console import Console

from common.console import progress_in_bytes
from common.errors import InputError
from common.walk import LeftOut, Reach, walk_files, walk_folders
from data.annotations import Annotations, Split, TextColumn, spellings
from data.coco_json import UNKNOWN_SIZE, check_ids, clean_annotations, read_entries
from data.decoding import SUFFIXES, displayed_size, read_photo
from data.findings import KINDS, TAKEN, Findings
from data.formats.convert import json_parts
from data.formats.labels import (
    NOTES,
    SPLIT_NAMES,
    WHOLE,
    CheckNames,
    LabelledSplit,
    LabelOptions,
    mark_displayed,
    settle_faults,
)
from data.index import read_stamp
from data.json_lists import LABELME, is_of_labelme
from data.packed import is_image_file, list_images
from data.verify.report import obstacle
from data.verify.splits import CheckedSplit

OTHER_TASKS = re.compile(r"captions|person_keypoints|image_info|stuff|panoptic|keypoints")
"""Files beside COCO's boxes, by the beginnings of their names."""
WORDS = re.compile(r"[a-z]+")
LABEL_FOLDERS = ("annotations", "labels")
"""Folders of files with labels, beside which the images are."""
IMAGES_TRIED = 50
MOST_FOLDERS = 1000


def read_coco(
    options: LabelOptions, check_names: CheckNames, console: Console
) -> list[LabelledSplit]:
    """Read a JSON file, or all splits of a folder with such files.

    Raises:
        InputError: A JSON file has faults, all of which are printed; there is none, or two for one
            split; the images are nowhere, or one is missing.
    """
    source, images = options.source, options.images
    root = source if source.is_dir() else source.parent
    # Of `annotations/x.json`, and of its folder, the images are beside that folder.
    top = root.absolute().parent if root.absolute().name in LABEL_FOLDERS else root
    reach = options.reach(top)
    read: list[LabelledSplit] = []
    roots: set[int] = set()
    files = find_files(source, reach)
    check_names(files, files.values())
    for name, file in files.items():
        if is_of_labelme(file):
            raise InputError(f"{file}: {LABELME}")
        annotations, notes, roots_here = read_file(
            file, skip_bad_labels=options.skip_bad_labels, console=console
        )
        folder = find_images(
            file, annotations.file_names, root=root, images=images, split=name, reach=reach
        )
        left_out = LeftOut()
        names = names_below(folder, file, annotations.file_names, reach, left_out)
        exists = np.array([name is not None for name in names], dtype=np.bool_)
        missing = int((~exists).sum())
        if missing:
            first = folder / annotations.file_names[int(np.flatnonzero(~exists)[0])]
            if not options.skip_missing_images:
                more = f", and {missing - 1:,} more images" if missing > 1 else ""
                fix = "set --images, or skip" if images is None else "skip"
                raise InputError(
                    f"{file}: images: {first} {reach.fault(first)}{more}; {fix} with "
                    "--skip-missing-images"
                )
            annotations = annotations.select(images=exists)
            notes.append(f"images that do not exist (skipped): {missing:,}")
        present = [name for name in names if name is not None]
        if present != list(annotations.file_names):
            notes.append(NOTES["shortened"])
            annotations = replace(annotations, file_names=TextColumn.of(present))
        annotations, sized = with_sizes(annotations, folder)
        notes += [*([f"{NOTES['sizes']}: {sized:,}"] if sized else []), *left_out.notes()]
        read.append(LabelledSplit(name, annotations, folder, notes))
        roots |= roots_here
    used = {number for split in read for number in np.unique(split.annotations.box_category_ids)}
    return mark_displayed([without_roots(split, roots - used) for split in read], console)


def without_roots(split: LabelledSplit, roots: Collection[int]) -> LabelledSplit:
    """Return a split without some categories, which have no boxes."""
    old = split.annotations
    rows = np.flatnonzero(~np.isin(old.category_ids, list(roots)))
    if len(rows) == len(old.category_ids):
        return split
    names = tuple(old.category_names[row] for row in rows.tolist())
    annotations = replace(old, category_ids=old.category_ids[rows], category_names=names)
    return replace(split, annotations=annotations, notes=[*split.notes, TAKEN["category_root"]])


def read_file(
    file: Path, *, skip_bad_labels: bool, console: Console
) -> tuple[Annotations, list[str], set[int]]:
    """Read a JSON file with a progress bar, and print its faults; return also notes and root ids.

    Images without a size have one of 0. Raises InputError for faults, unless they are skipped.
    """
    size, findings = read_stamp(file).size, Findings()
    with progress_in_bytes(console, f"reading {file.name}", total=size) as advance:
        entries = read_entries(
            file,
            findings,
            advance=advance,
            usable=(*TAKEN, "image_size_missing"),
            is_export=True,
        )
    if entries is not None:
        check_ids(entries, findings)
    kinds = [each for each in findings.stopping() if each.name != "image_size_missing"]
    faults = [
        f"{file}: {place.entry}: {place.found}: {KINDS[each.name].meaning}"
        for each in kinds
        for place in each.places
    ]
    is_usable = (
        obstacle(CheckedSplit(file.stem, Split(file, file.parent), findings, entries)) is None
    )
    number = sum(each.count for each in kinds)
    settle_faults(faults, number, skip=skip_bad_labels and is_usable, console=console)
    assert entries is not None
    notes = [
        f"{TAKEN[each.name]}: {each.count:,}, first {each.places[0].entry}"
        for each in findings.taken()
    ]
    roots = set(entries.category_ids[entries.category_is_root].tolist())
    return clean_annotations(entries), notes, roots


def with_sizes(annotations: Annotations, folder: Path) -> tuple[Annotations, int]:
    """Return the annotations with the sizes of displayed images where they lack them, and how many.

    Raises InputError for an image that cannot be read.
    """
    sides = np.stack([annotations.widths, annotations.heights], axis=1)
    rows = np.flatnonzero((sides == UNKNOWN_SIZE).any(axis=1))
    for row in rows.tolist():
        sides[row] = displayed_size(*read_photo(folder / annotations.file_names[row]))
    return replace(annotations, widths=sides[:, 0], heights=sides[:, 1]), len(rows)


def names_below(
    folder: Path, file: Path, names: Sequence[str], reach: Reach, left_out: LeftOut
) -> list[str | None]:
    """Return images' names relative to a folder, shortened where needed; None for missing ones.

    Raises:
        InputError: Two different names are one image.
    """
    present = set(list_images(folder, reach, left_out, suffixes=SUFFIXES))

    def is_there(name: str) -> bool:
        # A name may also lead through a link to a folder that the walk saw elsewhere.
        return str(PurePosixPath(name)) in present or reach.fault(folder / name) is None

    found = [
        name if is_there(name) else next(filter(is_there, spellings(name)), None) for name in names
    ]
    given: dict[str, str] = {}
    for name, below in zip(names, found, strict=True):
        if below is not None and given.setdefault(below, name) != name:
            raise InputError(
                f"{file}: images: {given[below]!r} and {name!r} would both be {folder / below}; "
                "keep the images in the folders that their names have"
            )
    return found


def find_files(source: Path, reach: Reach) -> dict[str, Path]:
    """Return the JSON file of each split."""
    if not source.is_dir():
        return {split_of(source, source.parent): source}
    left_out = LeftOut()
    below = walk_files(source, reach, left_out, suffixes=(".json",), depth=2)
    files = sorted(source / name for name in below)
    found: dict[str, Path] = {}
    for file in files:
        folders = file.relative_to(source).parts[:-1]
        if OTHER_TASKS.match(file.name) or any(name.endswith(".index") for name in folders):
            continue
        name = split_of(file, source)
        if name in found and is_of_labelme(found[name]):
            break  # the first of many files, which is refused when it is read
        if name in found:
            raise InputError(
                f"{source}: {found[name]} and {file} are both of the split {name!r}; give the path "
                "of one JSON file"
            )
        found[name] = file
    if not found:
        raise InputError(
            f"{source}: contains no JSON file; give the path of one{left_out.reason()}"
        )
    return found


def split_of(file: Path, root: Path) -> str:
    """Return the split that a file is of, by the words of its name, or of its folder's."""
    # COCO's `instances_val2017` has the words instances and val.
    folders = Path(os.path.relpath(file.parent, root)).parts
    parts = [file.stem, *reversed(folders)]
    for part in parts:
        for word in WORDS.findall(part.lower()):
            if word in SPLIT_NAMES:
                return SPLIT_NAMES[word]
    return WHOLE


def locate_images(
    file: Path, names: Sequence[str], *, images: Path | None
) -> tuple[Path, list[str]]:
    """Return the folder of the images that a JSON file names, and their names relative to it.

    A name without a file stays as it is.

    Raises:
        InputError: None is in `images`, or near the file; two different names are one image.
    """
    reach = Reach.of(file.parent, *([images] if images is not None else []))
    split = split_of(file, file.parent)
    folder = find_images(file, names, root=file.parent, images=images, split=split, reach=reach)
    below = names_below(folder, file, names, reach, LeftOut())
    return folder, [name or given for name, given in zip(below, names, strict=True)]


def find_images(
    file: Path, names: Sequence[str], *, root: Path, images: Path | None, split: str, reach: Reach
) -> Path:
    """Return the folder of the images that a JSON file names.

    Of the folders near the file, the one in which most of some tried images are; among equal ones
    that of the split's name, or else the nearest.
    """
    rows = np.linspace(0, len(names) - 1, min(len(names), IMAGES_TRIED)).astype(int).tolist()
    tried = [names[row] for row in rows]
    if images is not None:
        if not images.is_dir():
            raise InputError(f"--images: {images} is not a folder")
        folders = [images]
    else:
        folders = [*nearby_folders(file, root, reach)]
    spelled = [spellings(name) for name in tried]
    for place in range(max(map(len, spelled))):
        there = [texts[min(place, len(texts) - 1)] for texts in spelled]
        counts = [sum(is_image_file(folder / name) for name in there) for folder in folders]
        if not any(counts):
            continue
        best = [
            folder for folder, number in zip(folders, counts, strict=True) if number == max(counts)
        ]
        of_split = [folder for folder in best if split_of(folder / "x", root) == split]
        return (of_split or best)[0]
    left_out = LeftOut()
    deque(walk_folders(root, reach, left_out, suffixes=SUFFIXES, depth=2), maxlen=0)
    looked_in = ", ".join(map(str, folders[:5])) + (", …" if len(folders) > 5 else "")
    fault = f"is in no folder near it (looked in {looked_in}); set --images"
    if images is not None:
        fault = f"is not in {images}, nor are its last parts; give the folder that has it"
    raise InputError(
        f"{file}: images[{rows[0]}].file_name: {tried[0]!r} {fault}{left_out.reason()}"
    )


def nearby_folders(file: Path, root: Path, reach: Reach) -> Iterator[Path]:
    """Yield folders that may be the images', the likeliest first."""
    seen = set()
    tops = [file.parent, root]
    if file.parent.name in LABEL_FOLDERS:
        tops.append(file.parent.parent)
    for top in tops:
        found = walk_folders(top, reach, LeftOut(), suffixes=SUFFIXES, depth=2)
        below = sorted((folder.below for folder in found), key=lambda name: (name.count("/"), name))
        for folder in (top / name for name in below):
            if folder not in seen and not folder.name.endswith(".index"):
                seen.add(folder)
                yield folder
            if len(seen) == MOST_FOLDERS:
                return


def coco_labels(annotations: Annotations, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield one file, with scores and hundredths of pixels, under the name that CVAT gives it."""
    parts = json_parts(annotations, scores=scores)
    yield "annotations/instances_default.json", b"".join(parts).decode()
