"""The export of MLPerf's JSON, compared with plain code and pycocotools; sizes of image files.

A run of FiftyOne 0.15.1's own importer and exporter over such CSV files, in the order in which
OpenImages publishes them, gave the same images, categories and annotations to the last bit.
"""

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from rich.console import Console

from common.errors import InputError
from data.coco_json import read_annotations
from data.openimages import export as export_module
from data.openimages.export import list_images, read_sizes, write_coco_json
from tests.data.openimages.csv_tables import (
    LABELS,
    Row,
    photo_size,
    random_rows,
    write_boxes,
    write_descriptions,
    write_image_ids,
    write_photos,
)
from tests.support.commands import start_program

ROWS = [
    Row(3, "/m/cat", "0.1", "0.3", "0.2", "0.7", group="1"),
    Row(1, "/m/dog", "0.123457", "0.5", "0", "1", "-1", "1", "0", "-1", "0"),
    Row(3, "/m/0bt9lr"),
    Row(2, "/m/0bt9lr"),
    Row(3, "/m/cat", "0", "1", "0", "1", inside="1"),
    Row(1, "/m/cat", "0.6", "0.6", "0.5", "0.75", group="-1"),
]
"""Images out of order, several boxes an image, groups, unknown flags, an image (2) all of whose
boxes are of another class, a box without width."""

FLAGS = ("IsOccluded", "IsInside", "IsDepiction", "IsTruncated", "IsGroupOf")


def annotation(number: int, image: int, category: int, bbox: list[float], *flags: str) -> Any:
    """Return a box as MLPerf's JSON has it; the area is that of the box."""
    ids = {"id": number, "image_id": image, "category_id": category}
    box = {"bbox": bbox, "area": bbox[2] * bbox[3], "iscrowd": int("IsGroupOf" in flags)}
    return ids | box | {name: name in flags for name in FLAGS}


def export(
    folder: Path, rows: list[Row], classes: list[str], *, photos: list[int], **options: Any
) -> int:
    return write_coco_json(
        write_boxes(folder / "boxes.csv", rows),
        write_descriptions(folder / "classes.csv"),
        classes=classes,
        images=write_photos(folder / "data", photos),
        out=folder / "labels" / "openimages-mlperf.json",
        console=Console(file=options.pop("log", io.StringIO()), width=200),
        **options,
    )


def exported(folder: Path) -> Any:
    return json.loads((folder / "labels" / "openimages-mlperf.json").read_text())


def test_every_field(tmp_path: Path) -> None:
    assert export(tmp_path, ROWS, ["Dog", "Cat"], photos=[1, 2, 3]) == 0
    content = exported(tmp_path)
    assert list(content) == ["info", "licenses", "categories", "images", "annotations"]
    assert content["info"]["description"] == "OpenImages, 2 classes, from boxes.csv"
    assert content["licenses"] == []
    assert content["categories"] == [
        {"id": 0, "name": "Dog", "supercategory": None},
        {"id": 1, "name": "Cat", "supercategory": None},
    ]
    empty = {"license": None, "coco_url": None}
    assert content["images"] == [
        {"id": 1, "file_name": "0000000000000001.jpg", "height": 31, "width": 41, **empty},
        {"id": 2, "file_name": "0000000000000003.jpg", "height": 33, "width": 43, **empty},
    ]
    dog = [0.123457 * 41, 0.0, (0.5 - 0.123457) * 41, 31.0]
    flat = [0.6 * 41, 15.5, 0.0, 7.75]
    group = [0.1 * 43, 0.2 * 33, (0.3 - 0.1) * 43, (0.7 - 0.2) * 33]
    assert content["annotations"] == [
        annotation(1, 1, 0, dog, "IsOccluded", "IsTruncated", "IsDepiction"),
        annotation(2, 1, 1, flat, "IsGroupOf"),
        annotation(3, 2, 1, group, "IsGroupOf"),
        annotation(4, 2, 1, [0, 0, 43, 33], "IsInside"),
    ]


def expected_annotations(boxes_csv: Path, names: list[str]) -> list[dict[str, Any]]:
    """Return the annotations by plain code, a row at a time."""
    with boxes_csv.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if LABELS[row["LabelName"]] in names]
    image_ids = sorted({row["ImageID"] for row in rows})
    rows.sort(key=lambda row: row["ImageID"])
    annotations: list[dict[str, Any]] = []
    for number, row in enumerate(rows, start=1):
        width, height = photo_size(int(row["ImageID"], 16))
        left, right, top, bottom = (float(row[name]) for name in ("XMin", "XMax", "YMin", "YMax"))
        bbox = [left * width, top * height, (right - left) * width, (bottom - top) * height]
        image, category = image_ids.index(row["ImageID"]) + 1, names.index(LABELS[row["LabelName"]])
        flags = (name for name in FLAGS if int(row[name]))
        annotations.append(annotation(number, image, category, bbox, *flags))
    return annotations


@pytest.mark.slow
def test_random_boxes_equal_plain_code_and_pycocotools(tmp_path: Path) -> None:
    rows = random_rows(images=40, boxes=600)
    table, selected = tmp_path / "boxes.csv", ["Tortoise", "Cat", "Dog"]
    export(tmp_path, rows, selected, photos=[row.image for row in rows])
    assert exported(tmp_path)["annotations"] == expected_annotations(table, selected)
    export(tmp_path, rows, ["all"], photos=[row.image for row in rows], overwrite=True)
    out, names = tmp_path / "labels" / "openimages-mlperf.json", sorted(LABELS.values())
    expected = expected_annotations(table, names)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(out))
    assert coco.loadAnns(coco.getAnnIds()) == expected
    assert [category["name"] for category in coco.loadCats(coco.getCatIds())] == names
    ours = read_annotations(out)
    assert list(ours.category_names) == names and ours.category_ids.tolist() == [0, 1, 2, 3]
    xywh = np.array([annotation["bbox"] for annotation in expected])
    assert np.array_equal(ours.boxes, np.hstack([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]]))
    for column, field in (
        (ours.box_is_crowd, "iscrowd"),
        (ours.box_category_ids, "category_id"),
        (ours.box_areas, "area"),
        (ours.box_ids, "id"),
    ):
        assert column.tolist() == [annotation[field] for annotation in expected]


@pytest.mark.parametrize(
    ("classes", "listed", "images", "boxes"),
    [(["Cat"], [3, 2, 9], [3], [1, 1]), (["all"], [7, 3, 2], [2, 3, 7], [1, 2, 2, 2])],
)
def test_list_of_images(
    tmp_path: Path, classes: list[str], listed: list[int], images: list[int], boxes: list[int]
) -> None:
    ids = write_image_ids(tmp_path / "ids.csv", listed)
    assert export(tmp_path, ROWS, classes, photos=[1, 2, 3, 7], image_ids=ids) == 0
    content = exported(tmp_path)
    names = [f"{image:016x}.jpg" for image in images]
    assert [image["file_name"] for image in content["images"]] == names
    assert [box["image_id"] for box in content["annotations"]] == boxes


def test_missing_images(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 of 2 .*0{15}1\.jpg; .*--skip-missing-images"):
        export(tmp_path, ROWS, ["Cat"], photos=[3])
    assert not (tmp_path / "labels" / "openimages-mlperf.json").exists()
    assert export(tmp_path, ROWS, ["Cat"], photos=[3], skip_missing_images=True) == 1
    assert [box["bbox"][0] for box in exported(tmp_path)["annotations"]] == [0.1 * 43, 0.0]
    (tmp_path / "data" / f"{3:016x}.jpg").unlink()  # the last image by id
    export(tmp_path, ROWS, ["Cat"], photos=[1], skip_missing_images=True, overwrite=True)
    assert [box["bbox"][0] for box in exported(tmp_path)["annotations"]] == [0.6 * 41]


def test_pipe_in_the_place_of_an_image_is_refused(tmp_path: Path) -> None:
    export(tmp_path, ROWS, ["Cat"], photos=[1, 3])
    (tmp_path / "data" / f"{1:016x}.jpg").unlink()
    os.mkfifo(tmp_path / "data" / f"{1:016x}.jpg")
    with pytest.raises(InputError, match=r"1 of 2 images .*not a regular file"):
        export(tmp_path, ROWS, ["Cat"], photos=[3], overwrite=True)


@pytest.mark.parametrize(
    ("classes", "photos", "match"),
    [
        (["Cat"], [], "none of the 2 images"),
        (["Tortoise"], [1], r"boxes\.csv: no image has a box of the 1 classes"),
        (["Cat"], [1, 3], "mlperf.json: cannot be written"),
    ],
)
def test_export_that_cannot_be_made_is_refused(
    tmp_path: Path, classes: list[str], photos: list[int], match: str
) -> None:
    if photos == [1, 3]:
        (tmp_path / "labels").write_text("a file")
    with pytest.raises(InputError, match=match):
        export(tmp_path, ROWS, classes, photos=photos, skip_missing_images=True)


def test_old_output_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> Iterator[list[object]]:
        yield []
        raise OSError(28, "No space left on device")

    log = io.StringIO()
    export(tmp_path, ROWS, ["Cat"], photos=[1, 3], log=log)
    assert [line.split(" 0:")[0].rstrip() for line in log.getvalue().splitlines()] == [
        "reading sizes of images 2/2",
        "writing openimages-mlperf.json, boxes 3/3",
    ]
    before = exported(tmp_path)
    with pytest.raises(InputError, match="exists; give --overwrite"):
        export(tmp_path, ROWS, ["Dog"], photos=[1, 3])
    with monkeypatch.context() as full:
        full.setattr("data.openimages.export._annotations", fail)
        with pytest.raises(InputError, match=r"mlperf\.json: cannot be written: No space left"):
            export(tmp_path, ROWS, ["Dog"], photos=[1, 3], overwrite=True)
    assert exported(tmp_path) == before
    assert [path.name for path in (tmp_path / "labels").iterdir()] == ["openimages-mlperf.json"]
    export(tmp_path, ROWS, ["Dog"], photos=[1, 3], overwrite=True)
    assert len(exported(tmp_path)["annotations"]) == 1


def image_sizes(
    folder: Path, images: Iterable[int], output: TextIO | None = None
) -> list[list[int]]:
    console = Console(file=output or io.StringIO(), width=100)
    sizes = read_sizes(folder, np.array(list(images), dtype=np.uint64), console=console)
    assert sizes.shape[1:] == (2,)
    return sizes.tolist()


def test_images_of_a_folder(tmp_path: Path) -> None:
    write_photos(tmp_path, [2**64 - 1, 7, 3])
    for name in ("7.jpg", f"{9:016x}.png", "000000000000000A.jpg", f"{8:016x}.jpg.part"):
        (tmp_path / name).touch()
    listed = list_images(tmp_path)
    assert sorted(listed.tolist()) == [3, 7, 2**64 - 1] and listed.dtype == np.uint64
    with pytest.raises(InputError, match=r"none: .*: No such file"):
        list_images(tmp_path / "none")


def test_sizes_in_the_given_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "FILES_AT_ONCE", 4)
    images, output = [5, 1, 30, 2, 9, 8, 7, 21, 22, 23], io.StringIO()
    write_photos(tmp_path, images)
    assert image_sizes(tmp_path, images, output) == [list(photo_size(image)) for image in images]
    assert "reading sizes of images 10/10" in output.getvalue()
    assert image_sizes(tmp_path, []) == []
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    Image.new("RGB", (50, 20)).save(tmp_path / f"{1:016x}.jpg", exif=exif)
    assert image_sizes(tmp_path, [1]) == [[50, 20]]


def test_unreadable_images_are_reported(tmp_path: Path) -> None:
    write_photos(tmp_path, range(1, 11))
    (tmp_path / f"{4:016x}.jpg").write_bytes(b"<html>")
    (tmp_path / f"{6:016x}.jpg").write_bytes(b"")
    (tmp_path / f"{9:016x}.jpg").unlink()
    Image.new("RGB", (4, 4)).save(tmp_path / f"{8:016x}.jpg", format="PPM")
    with pytest.raises(
        InputError, match=r"4 of 10 images .* the first is 0{15}4\.jpg \(not an image in JPEG, "
    ):
        image_sizes(tmp_path, range(1, 11))


ONE_BUSY_ONE_IDLE = """
import os, sys, time
from pathlib import Path
import numpy as np
from rich.console import Console
from data.openimages import export

def wait(path):
    if path.name == "0000000000000000.jpg":
        time.sleep(0.2)  # the other process is idle then
        print(os.getpid(), flush=True)
        time.sleep(60)
    return (1, 1), 1

export.read_photo = wait
export.FILES_AT_ONCE = 1
export.read_sizes(Path("."), np.arange(2, dtype=np.uint64), console=Console(quiet=True))
"""


def start(script: str) -> subprocess.Popen[str]:
    return start_program(sys.executable, "-c", script, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_processes_end_with_their_parent(number: signal.Signals) -> None:
    with start(ONE_BUSY_ONE_IDLE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait(timeout=30)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline, "the process goes on without its parent"
        time.sleep(0.05)


@pytest.mark.slow
def test_ctrl_c_is_reported_once() -> None:
    with start(ONE_BUSY_ONE_IDLE.replace("time.sleep(60)", "time.sleep(3)")) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        parent.stdout.readline()
        os.killpg(parent.pid, signal.SIGINT)
        errors = parent.stderr.read()
    assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt")
