"""OpenImages' CSV files and photos for tests, small ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

HEADER = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,"
    "IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
)
CLICKS = ",".join(f"XClick{point}{axis}" for axis in "XY" for point in range(1, 5))
"""v6's training file has these columns too."""

LABELS = {"/m/cat": "Cat", "/m/dog": "Dog", "/m/011k07": "Tortoise", "/m/0bt9lr": "Person"}


class Row(NamedTuple):
    """One box, as the CSV writes it."""

    image: int
    label: str = "/m/cat"
    x_min: str = "0.1"
    x_max: str = "0.5"
    y_min: str = "0.25"
    y_max: str = "0.75"
    occluded: str = "0"
    truncated: str = "0"
    group: str = "0"
    depiction: str = "0"
    inside: str = "0"

    def line(self) -> str:
        image_id, *fields = f"{self.image:016x}", *self[2:]
        return ",".join([image_id, "xclick", self.label, "1", *fields])


def write_boxes(path: Path, rows: Iterable[Row], *, clicks: bool = False) -> Path:
    """Write a CSV of boxes; with `clicks` v6's additional columns."""
    header = f"{HEADER},{CLICKS}" if clicks else HEADER
    tail = ",-1.000000" * 8 if clicks else ""
    return write_lines(path, [header, *(row.line() + tail for row in rows)])


def write_descriptions(path: Path, *, header: bool = False) -> Path:
    """Write class descriptions of `LABELS` as in v5, or with v7's header."""
    lines = ["LabelName,DisplayName"] if header else []
    return write_lines(path, [*lines, *(f"{label},{name}" for label, name in LABELS.items())])


def write_image_ids(path: Path, images: Iterable[int]) -> Path:
    """Write a list of images with OpenImages' columns."""
    lines = [f'{image:016x},train,https://a.example,"A, title ""of"" it",0' for image in images]
    return write_lines(path, ["ImageID,Subset,OriginalURL,Title,Rotation", *lines])


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_photos(folder: Path, images: Iterable[int]) -> Path:
    """Write photos `<ImageID>.jpg` of the sizes that `photo_size` returns."""
    folder.mkdir(exist_ok=True)
    for image in images:
        Image.new("RGB", photo_size(image)).save(folder / f"{image:016x}.jpg")
    return folder


def photo_size(image: int) -> tuple[int, int]:
    """Return width and height of a photo."""
    return 40 + image % 7, 30 + image % 5


def random_rows(*, images: int, boxes: int, seed: int = 0) -> list[Row]:
    """Return boxes in random order, with all labels and flags."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(boxes):
        corners = np.sort(random.uniform(size=(2, 2)), axis=1).ravel()
        flags = random.choice(["0", "1", "-1"], size=5)
        rows.append(
            Row(
                int(random.integers(1, images + 1)) * 0xF00D_F00D_F00D,
                str(random.choice(list(LABELS))),
                *(f"{corner:.6f}" for corner in corners),
                *map(str, flags),
            )
        )
    return rows
