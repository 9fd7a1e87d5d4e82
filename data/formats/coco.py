"""COCO's format in other layouts of folders than COCO's and MLPerf's own.

`_annotations.coco.json` beside the images of each split (Roboflow), `annotations/` with a file for
each split and folders of images beside it (COCO's forks, CVAT), `result.json` with `images/` (Label
Studio). The folder of images is where the files are whose names the annotations have; where only
the last parts of these names exist, they are shortened.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
from rich.console import Console

from common.console import progress_in_bytes
from common.errors import InputError
from data.annotations import Annotations, TextColumn
from data.coco_json import read_annotations
from data.formats.labels import (
    SPLIT_NAMES,
    WHOLE,
    CheckNames,
    LabelledSplit,
    image_files,
    select_images,
)
from data.index import read_stamp

OTHER_TASKS = re.compile(r"captions|person_keypoints|image_info|stuff|panoptic|keypoints")
"""Files beside COCO's boxes, by the beginnings of their names."""
WORDS = re.compile(r"[a-z]+")
IMAGES_TRIED = 50
MOST_FOLDERS = 1000


def read_coco(
    source: Path,
    *,
    images: Path | None,
    skip_missing_images: bool,
    check_names: CheckNames,
    console: Console,
) -> list[LabelledSplit]:
    """Read a JSON file, or all splits of a folder with such files.

    Raises:
        InputError: The first fault of a JSON file; there is none, or two for one split; the images
            are nowhere, or one is missing.
    """
    root = source if source.is_dir() else source.parent
    read = []
    files = find_files(source)
    check_names(files)
    for name, file in files.items():
        annotations = read_file(file, console)
        folder, names = find_images(file, annotations, root=root, images=images, split=name)
        notes = (
            []
            if names is annotations.file_names
            else ["file names are shortened to the parts that exist"]
        )
        annotations = replace(annotations, file_names=names)
        present = set(image_files(folder))
        exists = np.array([plain(name) in present for name in names], dtype=np.bool_)
        missing = int((~exists).sum())
        if missing:
            first = folder / names[int(np.flatnonzero(~exists)[0])]
            if not skip_missing_images:
                more = f", and {missing - 1:,} more images" if missing > 1 else ""
                raise InputError(
                    f"{file}: images: {first} does not exist{more}; set --images, or skip with "
                    "--skip-missing-images"
                )
            annotations = select_images(annotations, exists)
            notes.append(f"images that do not exist (skipped): {missing:,}")
        read.append(LabelledSplit(name, annotations, folder, notes))
    return read


def read_file(file: Path, console: Console) -> Annotations:
    """Read a JSON file with a progress bar."""
    size = read_stamp(file).size
    with progress_in_bytes(console, f"reading {file.name}", total=size) as advance:
        return read_annotations(file, advance=lambda done: advance(done, ""))


def plain(name: str) -> str:
    """Return a file name without `./` and doubled slashes."""
    return str(PurePosixPath(name))


def find_files(source: Path) -> dict[str, Path]:
    """Return the JSON file of each split."""
    if not source.is_dir():
        return {split_of(source, source.parent): source}
    files = sorted([*source.glob("*.json"), *source.glob("*/*.json"), *source.glob("*/*/*.json")])
    found: dict[str, Path] = {}
    for file in files:
        below = file.relative_to(source)
        if OTHER_TASKS.match(file.name) or any(p.endswith(".index") for p in below.parts[:-1]):
            continue
        name = split_of(file, source)
        if name in found:
            raise InputError(
                f"{source}: {found[name]} and {file} are both of the split {name!r}; give the path "
                "of one JSON file"
            )
        found[name] = file
    if not found:
        raise InputError(f"{source}: contains no JSON file; give the path of one")
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
    file: Path, annotations: Annotations, *, root: Path, images: Path | None, split: str
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
        folders = [*nearby_folders(file, root)]
    shortest = min(name.count("/") for name in names)
    for cut in range(shortest + 1):
        counts = [
            sum((folder / shortened(name, cut)).is_file() for name in tried) for folder in folders
        ]
        if not any(counts):
            continue
        best = [
            folder for folder, number in zip(folders, counts, strict=True) if number == max(counts)
        ]
        of_split = [folder for folder in best if split_of(folder / "x", root) == split]
        folder = (of_split or best)[0]
        return folder, names if not cut else TextColumn.of(shortened(name, cut) for name in names)
    looked_in = ", ".join(map(str, folders[:5])) + (", …" if len(folders) > 5 else "")
    raise InputError(
        f"{file}: images[{rows[0]}].file_name: {tried[0]!r} is in no folder near it (looked in "
        f"{looked_in}); set --images"
    )


def shortened(name: str, cut: int) -> str:
    """Return a file name without the first `cut` folders."""
    return "/".join(name.split("/")[cut:])


def nearby_folders(file: Path, root: Path) -> Iterator[Path]:
    """Yield folders that may be the images', the likeliest first."""
    seen = set()
    tops = [file.parent, root]
    if file.parent.name in ("annotations", "labels"):
        tops.append(file.parent.parent)
    for top in tops:
        folders = [top, *(folder for folder in sorted(top.glob("*")) if folder.is_dir())]
        folders += [folder for folder in sorted(top.glob("*/*")) if folder.is_dir()]
        for folder in folders:
            if folder not in seen and not folder.name.endswith(".index"):
                seen.add(folder)
                yield folder
            if len(seen) == MOST_FOLDERS:
                return
