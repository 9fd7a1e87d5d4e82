"""Labels of other programs, and weights to start from, as functions of bytes with their seeds."""

import functools
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from common.console import make_console
from data.formats.labels import LabelOptions, LabelPart, settle_faults
from data.formats.voc import VocSplit, read_files
from data.formats.yolo import find_set, read_labels
from retinanet.training.detector_weights import read_weights_file
from tests.fuzz.inputs import value_or_error, write_file

WIDTH, HEIGHT = 40, 30
CUT = b"\x00\x00"
"""Separator between `data.yaml` and the labels of an image."""

YAML = b"path: .\ntrain: images\nnames: {0: cat, 1: dog}\nnc: 2\n"
YOLO_LINES = (
    b"0 0.5 0.5 0.2 0.1\n1 0.25 0.25 0.5 0.5\n",
    b"1 0.1 0.1 0.9 0.1 0.9 0.9\n",  # a polygon
    b"\xef\xbb\xbf0 5e-1 .5 1 1\r\n",
    b"",
)
KEY_POINTS = b"train: images\nnames: [cat]\nkpt_shape: [2, 3]\n"
VOC = b"""<annotation><filename>a.png</filename>
<size><width>40</width><height>30</height><depth>3</depth></size>
<object><name>d\xc3\xb6g</name><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>2.5</ymin><xmax>4e0</xmax><ymax>30</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part></object></annotation>
"""


def yolo_files() -> list[bytes]:
    """Return `data.yaml` with labels of each kind."""
    points = b"0 0.5 0.5 0.2 0.1 0.4 0.4 2 0.5 0.5 1\n"
    return [*(CUT.join((YAML, lines)) for lines in YOLO_LINES), CUT.join((KEY_POINTS, points))]


def voc_files() -> list[bytes]:
    """Return an XML file, with and without a declaration, and one without objects."""
    declaration = b'<?xml version="1.0" encoding="utf-8"?>\n'
    return [VOC, declaration + VOC, VOC[: VOC.index(b"<object>")] + b"</annotation>"]


def require_valid(part: LabelPart, size: tuple[int, int]) -> None:
    """Assert that the labels of one image are numbers inside it or nearly so."""
    boxes = part.boxes["xyxy"]
    assert part.images["size"].tolist() == [list(size)]
    assert part.images["boxes"].tolist() == [len(boxes)]
    assert np.isfinite(boxes).all() and np.isfinite(part.boxes["area"]).all()
    assert (boxes[:, 2:] >= boxes[:, :2]).all()


def require_no_fault(part: LabelPart) -> None:
    """Raise InputError about the faults of a part."""
    console = make_console(quiet=True)
    settle_faults(part.faults, part.counts["faults"], skip=False, console=console)


def check_yolo(data: bytes, folder: Path) -> None:
    """Read `data.yaml`, then the labels of an image, in this process."""
    text, _, labels = data.partition(CUT)
    image = folder / "images" / "a.png"
    if not image.exists():
        image.parent.mkdir(parents=True)
        Image.new("RGB", (WIDTH, HEIGHT)).save(image)
    file = write_file(folder / "data.yaml", text)
    write_file(folder / "images" / "a.txt", labels)
    found = value_or_error(lambda: find_set(LabelOptions(source=file)), str(file))
    if found is None:
        return

    def read() -> LabelPart:
        part = read_labels(image.parent, found, [image.name])
        require_no_fault(part)
        return part

    part = value_or_error(read, str(image.with_suffix(".txt")))
    if part is not None:
        require_valid(part, (WIDTH, HEIGHT))
        assert set(part.boxes["category"]) <= set(found.names)


def check_voc(data: bytes, folder: Path) -> None:
    """Read an XML file alone and as a split's."""
    file = write_file(folder / "a.xml", data)
    image = folder / "a.png"
    if not image.exists():  # an XML file may leave out its size
        Image.new("RGB", (WIDTH, HEIGHT)).save(image)
    listed = {"a": "a.png", "a.png": "a.png"}
    split = VocSplit("train", [file], folder, folder, listed, is_whole=True)

    def read() -> LabelPart:
        part = read_files(split, None, False, "", [file])
        require_no_fault(part)
        return part

    part = value_or_error(read, str(file))
    if part is not None:
        require_valid(part, tuple(part.images["size"][0].tolist()))
        assert all(part.boxes["category"])


@functools.cache
def weights_files() -> list[bytes]:
    """Return small .safetensors files: a backbone's tensor, logits with names, and none."""
    logits = "head.classification_head.cls_logits.weight"
    tensors = {logits: torch.ones(18, 2, 1, 1), "backbone.body.conv1.weight": torch.ones(1)}
    names = {"classes": json.dumps(["cat", "dog"])}
    return [save(tensors, names), save({"conv1.weight": torch.ones(2, 2)}), save({}, names)]


def check_weights(data: bytes, folder: Path) -> None:
    """Read a file as `model.weights`; the small ones are no complete detector."""
    file = write_file(folder / "weights.safetensors", data)
    assert value_or_error(lambda: read_weights_file(file), str(file)) is None
