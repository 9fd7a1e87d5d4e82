"""COCO's format in other layouts of folders than COCO's and MLPerf's own.

`_annotations.coco.json` beside the images of each split (Roboflow), `annotations/` with a file for
each split and folders of images beside it (COCO's forks, CVAT), `result.json` with `images/` (Label
Studio). The folder of images is where the files are whose names the annotations have; where only
the last parts of these names exist, they are shortened.
"""

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
from rich.console import Console

from common.console import progress_in_bytes
from common.errors import InputError
from common.walk import LeftOut, Reach, walk_files, walk_folders
from data.annotations import Annotations, TextColumn
from data.coco_json import read_annotations
from data.decoding import SUFFIXES
from data.formats.labels import (
    SPLIT_NAMES,
    WHOLE,
    CheckNames,
    LabelledSplit,
    select_images,
)
from data.index import read_stamp

OTHER_TASKS = re.compile(r"captions|person_keypoints|image_info|stuff|panoptic|keypoints")
"""Files beside COCO's boxes, by the beginnings of their names."""
WORDS = re.compile(r"[a-z]+")
LABEL_FOLDERS = ("annotations", "labels")
"""Folders of files with labels, beside which the images are."""
IMAGES_TRIED = 50
MOST_FOLDERS = 1000


def read_coco(
    source: Path,
    *,
    images: Path | None,
    skip_missing_images: bool,
    allow_outside: bool = False,
    check_names: CheckNames,
    console: Console,
) -> list[LabelledSplit]:
    """Read a JSON file, or all splits of a folder with such files.

    With `allow_outside` links may lead out of the data set's folder.

    Raises:
        InputError: The first fault of a JSON file; there is none, or two for one split; the images
            are nowhere, or one is missing.
    """
    root = source if source.is_dir() else source.parent
    # Of `annotations/x.json`, and of its folder, the images are beside that folder.
    top = root.absolute().parent if root.absolute().name in LABEL_FOLDERS else root
    named_by_user = [top, *([images] if images is not None else [])]
    reach = Reach.of(*named_by_user, allow_outside=allow_outside)
    read = []
    files = find_files(source, reach)
    check_names(files, files.values())
    for name, file in files.items():
        annotations = read_file(file, console)
        folder, names = find_images(
            file, annotations, root=root, images=images, split=name, reach=reach
        )
        notes = (
            []
            if names is annotations.file_names
            else ["file names are shortened to the parts that exist"]
        )
        annotations = replace(annotations, file_names=names)
        left_out = LeftOut()
        present = set(walk_files(folder, reach, left_out, suffixes=SUFFIXES))
        # A name may also lead through a link to a folder that the walk saw elsewhere.
        exists = np.array(
            [plain(name) in present or reach.fault(folder / name) is None for name in names],
            dtype=np.bool_,
        )
        missing = int((~exists).sum())
        if missing:
            first = folder / names[int(np.flatnonzero(~exists)[0])]
            if not skip_missing_images:
                more = f", and {missing - 1:,} more images" if missing > 1 else ""
                raise InputError(
                    f"{file}: images: {first} {reach.fault(first)}{more}; set --images, or skip "
                    "with --skip-missing-images"
                )
            annotations = select_images(annotations, exists)
            notes.append(f"images that do not exist (skipped): {missing:,}")
        read.append(LabelledSplit(name, annotations, folder, [*notes, *left_out.notes()]))
    return read


def read_file(file: Path, console: Console) -> Annotations:
    """Read a JSON file with a progress bar."""
    size = read_stamp(file).size
    with progress_in_bytes(console, f"reading {file.name}", total=size) as advance:
        return read_annotations(file, advance=lambda done: advance(done, ""))


def plain(name: str) -> str:
    """Return a file name without `./` and doubled slashes."""
    return str(PurePosixPath(name))


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


def find_images(
    file: Path,
    annotations: Annotations,
    *,
    root: Path,
    images: Path | None,
    split: str,
    reach: Reach,
) -> tuple[Path, Sequence[str]]:
    """Return the folder of the images of a JSON file, and their names relative to it.

    Of the folders near the file, the one in which most of some tried images are; among equal ones
    that of the split's name, or else the nearest.
    """
    names = annotations.file_names
    rows = np.linspace(0, len(names) - 1, min(len(names), IMAGES_TRIED)).astype(int).tolist()
    tried = [names[row] for row in rows]
    if images is not None:
        if not images.is_dir():
            raise InputError(f"--images: {images} is not a folder")
        folders = [images]
    else:
        folders = [*nearby_folders(file, root, reach)]
    shortest = min(name.count("/") for name in names)
    for cut in range(shortest + 1):
        counts = [
            sum(os.path.isfile(folder / shortened(name, cut)) for name in tried)  # noqa: PTH113
            for folder in folders
        ]
        if not any(counts):
            continue
        best = [
            folder for folder, number in zip(folders, counts, strict=True) if number == max(counts)
        ]
        of_split = [folder for folder in best if split_of(folder / "x", root) == split]
        folder = (of_split or best)[0]
        return folder, names if not cut else TextColumn.of(shortened(name, cut) for name in names)
    left_out = LeftOut()
    deque(walk_folders(root, reach, left_out, suffixes=SUFFIXES, depth=2), maxlen=0)
    looked_in = ", ".join(map(str, folders[:5])) + (", …" if len(folders) > 5 else "")
    raise InputError(
        f"{file}: images[{rows[0]}].file_name: {tried[0]!r} is in no folder near it (looked in "
        f"{looked_in}); set --images{left_out.reason()}"
    )


def shortened(name: str, cut: int) -> str:
    """Return a file name without the first `cut` folders."""
    return "/".join(name.split("/")[cut:])


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
