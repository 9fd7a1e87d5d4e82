"""Data sets in the formats of other programs, written from annotations in ours."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image
from rich.console import Console

from data.annotations import Annotations, TextColumn
from data.formats.labels import LabelledSplit, LabelOptions, Reader

NAMES = ("Cat", "dog <small>", "Große Ente")


def random_annotations(
    *,
    images: int,
    boxes: int,
    seed: int = 0,
    size: tuple[int, int] = (96, 64),
    names: Sequence[str] = NAMES,
) -> Annotations:
    """Return random boxes of whole pixels inside images of a size (width, height)."""
    random = np.random.default_rng(seed)
    counts = np.bincount(random.integers(images, size=boxes), minlength=images)
    corners = np.sort(random.integers(0, size, (boxes, 2, 2)), axis=1)
    corners[:, 1] += 1  # no box is empty
    xyxy = corners.reshape(-1, 4).astype(np.float64)
    return Annotations(
        category_ids=np.arange(len(names)),
        category_names=tuple(names),
        image_ids=np.arange(1, images + 1),
        file_names=TextColumn.of(f"part {row % 2}/{row:03}.jpg" for row in range(images)),
        widths=np.full(images, size[0], np.int32),
        heights=np.full(images, size[1], np.int32),
        is_displayed=np.zeros(images, dtype=np.bool_),
        box_offsets=np.concatenate([[0], np.cumsum(counts)]),
        boxes=xyxy,
        box_category_ids=random.integers(len(names), size=boxes),
        box_is_crowd=np.zeros(boxes, dtype=np.bool_),
        box_areas=np.prod(xyxy[:, 2:] - xyxy[:, :2], axis=1),
        box_ids=np.arange(1, boxes + 1),
    )


def reading(reader: Reader) -> Callable[..., list[LabelledSplit]]:
    """Return a function that reads a source by a reader, with options, and perhaps a console."""

    def read(source: Path, **options: Any) -> list[LabelledSplit]:
        console = options.pop("console", Console(quiet=True))
        return reader(LabelOptions(source=source, **options), lambda names, files: None, console)

    return read


def write_photos(folder: Path, annotations: Annotations) -> None:
    """Write a JPEG of the right size for each image."""
    sizes = zip(annotations.widths.tolist(), annotations.heights.tolist(), strict=True)
    for name, size in zip(annotations.file_names, sizes, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (90, 120, 150)).save(folder / name)


def write_yolo(folder: Path, annotations: Annotations, *, split: str = "train") -> None:
    """Write the files of labels, `labels/SPLIT/…`, of images in `images/SPLIT/…`."""
    class_of_id = {number: place for place, number in enumerate(annotations.category_ids.tolist())}
    for row, name in enumerate(annotations.file_names):
        height, width = annotations.image_size(row)
        rows = annotations.box_slice(row)
        lines = []
        boxes = annotations.boxes[rows].tolist()
        ids = annotations.box_category_ids[rows].tolist()
        for (x1, y1, x2, y2), number in zip(boxes, ids, strict=True):
            shares = (
                (x1 + x2) / 2 / width,
                (y1 + y2) / 2 / height,
                (x2 - x1) / width,
                (y2 - y1) / height,
            )
            lines.append(
                " ".join([str(class_of_id[number]), *(f"{share:.6f}" for share in shares)])
            )
        if lines:
            file = (folder / "labels" / split / name).with_suffix(".txt")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(lines) + "\n")


def write_data_yaml(folder: Path, names: Sequence[str], **splits: str) -> Path:
    """Write Ultralytics' description of a data set."""
    listed = "".join(f"  {place}: {name!r}\n" for place, name in enumerate(names))
    paths = "".join(f"{key}: {value}\n" for key, value in splits.items())
    file = folder / "data.yaml"
    file.write_text(f"path: .\n{paths}names:\n{listed}", encoding="utf-8")
    return file


def voc_object(name: str, box: Sequence[float], *, difficult: int = 0) -> str:
    """Return an object of an XML file."""
    sides = "".join(
        f"<{side}>{value:g}</{side}>"
        for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return (
        f"  <object>\n    <name>{escape(name)}</name>\n    <difficult>{difficult}</difficult>\n"
        f"    <bndbox>{sides}</bndbox>\n  </object>\n"
    )


def voc_xml(file_name: str, size: tuple[int, int], objects: str) -> str:
    """Return an XML file for an image of a size (width, height)."""
    return (
        f"<annotation>\n  <filename>{escape(file_name)}</filename>\n"
        f"  <size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>\n"
        f"{objects}</annotation>\n"
    )


def write_voc(folder: Path, annotations: Annotations, *, split: str = "train") -> None:
    """Write `Annotations/…` and the split's list, with coordinates that count from 1."""
    names = dict(zip(annotations.category_ids.tolist(), annotations.category_names, strict=True))
    stems = []
    for row, name in enumerate(annotations.file_names):
        height, width = annotations.image_size(row)
        rows = annotations.box_slice(row)
        objects = "".join(
            voc_object(
                names[number], (box[0] + 1, box[1] + 1, box[2], box[3]), difficult=int(is_crowd)
            )
            for box, number, is_crowd in zip(
                annotations.boxes[rows].tolist(),
                annotations.box_category_ids[rows].tolist(),
                annotations.box_is_crowd[rows].tolist(),
                strict=True,
            )
        )
        file = (folder / "Annotations" / name).with_suffix(".xml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(voc_xml(Path(name).name, (width, height), objects), encoding="utf-8")
        stems.append(name.rpartition(".")[0])
    listed = folder / "ImageSets" / "Main" / f"{split}.txt"
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text("\n".join(stems) + "\n", encoding="utf-8")
