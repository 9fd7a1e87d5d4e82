"""Where a split's annotations and images lie: paths that are given, or a known tree.

TODO-DOC Where an image of annotations lies: always below the folder of images.

TODO-DOC Which sizes of images and boxes can be trained on; here nothing loads torch.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from common.errors import InputError

SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")


class Split(NamedTuple):
    """One split of a data set: its COCO-format JSON, or an index, and its folder of images."""

    annotations: Path
    images: Path


def known_trees(root: Path, split: SplitName) -> dict[str, Split]:
    """Where the split lies in MLPerf's OpenImages tree and in COCO 2017's, by the tree's name."""
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
    """Find a split's JSON and images: given paths win, the rest comes from a tree under `root`.

    Raises InputError naming the config field (`data.root`, `data.train_annotations`, …), the
    path looked for, and the trees that are known.
    """
    if root is not None and not root.is_dir() and (annotations is None or images is None):
        raise InputError(f"data.root: {root} is not a folder; give the data set's folder")
    tree = _detect(root, split, need_json=annotations is None, need_images=images is None)
    found = Split(annotations or tree.annotations, images or tree.images)
    if not found.annotations.exists():
        raise InputError(
            f"data.{split}_annotations: {found.annotations} does not exist; expected a file in "
            "COCO's JSON format, or an index"
        )
    if not found.images.is_dir():
        raise InputError(
            f"data.{split}_images: {found.images} does not exist; expected a folder of images"
        )
    return found


def _detect(root: Path | None, split: SplitName, *, need_json: bool, need_images: bool) -> Split:
    """The tree under `root` that holds a part of the split that is needed."""
    if not need_json and not need_images:
        return Split(Path(), Path())
    missing = [f"data.{split}_annotations"] * need_json + [f"data.{split}_images"] * need_images
    if root is None:
        raise InputError(f"data.root: not set; set it, or {' and '.join(missing)}")
    trees = known_trees(root, split)
    for tree in trees.values():
        if (need_json and tree.annotations.is_file()) or (need_images and tree.images.is_dir()):
            return tree
    looked_for = "; ".join(
        f"{name} tree ({tree.annotations}, {tree.images}/)" for name, tree in trees.items()
    )
    raise InputError(
        f"data.root: {root} holds no {split} split; looked for {looked_for}; "
        f"give one of them, or set {' and '.join(missing)}"
    )


def leaves_folder(name: str) -> bool:
    """Whether a file name, put behind a folder, may name a file outside of it."""
    upwards = ".." in name and ".." in PurePosixPath(name).parts
    return upwards or name.startswith("/") or "\0" in name


def image_path(folder: Path, name: str) -> Path:
    """The file of an image. An index may be anybody's: its names are looked at where they are used.

    Raises:
        InputError: The name leads out of the folder. Links in it are followed: those are the
            user's own.
    """
    if leaves_folder(name):
        raise InputError(f"annotations: file_name {shown(name)}: leads out of {folder}")
    return folder / name


MINIMUM_SIDE = 1e-3
"""Pixels; a box with a shorter side has no area that float32 holds, and no IoU with any anchor."""


def is_resized_copy(decoded: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Whether two sizes (height, width) are of one shape, but for a pixel by which one was rounded.

    Boxes can be scaled from one to the other. With another shape (a turned photo, another picture)
    they would be nonsense.
    """
    excess = abs(decoded[0] * annotated[1] - decoded[1] * annotated[0])
    return excess <= max(annotated)


def is_quarter_turn(stored: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Return whether annotations fit an image only once it is turned by 90°, by (height, width)."""
    turned = stored[::-1]
    if annotated in (stored, turned):
        return annotated != stored
    return not is_resized_copy(stored, annotated) and is_resized_copy(turned, annotated)


def fits_both_ways(stored: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Return whether annotations fit an image as well turned by 90° as not turned."""
    turned = stored[::-1]
    if annotated in (stored, turned):
        return stored == turned
    return is_resized_copy(stored, annotated) and is_resized_copy(turned, annotated)


def shown(value: object) -> str:
    """A JSON value in one short line, for an error message."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "a value that is nested too deep"
    return text if len(text) <= 60 else text[:57] + "..."
