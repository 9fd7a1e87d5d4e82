"""The JSON of MLPerf's export: by hand, by plain code over the rows, and as others read it.

A run of FiftyOne 0.15.1's own importer and exporter over such CSV files, in the order in which
OpenImages publishes them, gave the same images, categories and annotations to the last bit.
"""

import contextlib
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from rich.console import Console

from common.errors import InputError
from data.coco_json import read_annotations
from data.openimages.export import Summary, write_coco_json
from tests.data.openimages.csv_tables import (
    LABELS,
    Row,
    random_rows,
    size_of,
    write_boxes,
    write_descriptions,
    write_image_ids,
    write_photos,
)

TRICKY = [
    Row(3, "/m/cat", "0.1", "0.3", "0.2", "0.7", group="1"),
    Row(1, "/m/dog", "0.123457", "0.5", "0", "1", "-1", "1", "0", "-1", "0"),
    Row(3, "/m/0bt9lr"),
    Row(2, "/m/0bt9lr"),
    Row(3, "/m/cat", "0", "1", "0", "1", inside="1"),
    Row(1, "/m/cat", "0.6", "0.6", "0.5", "0.75", group="-1"),
]
"""Images out of order, several boxes an image, groups, unknown flags, an image (2) all of whose
boxes are of another class, a box without width."""

NO_FLAGS = dict.fromkeys(
    ["IsOccluded", "IsInside", "IsDepiction", "IsTruncated", "IsGroupOf"], False
)


def export(
    folder: Path, rows: list[Row], classes: list[str], *, photos: list[int], **options: Any
) -> Summary:
    return write_coco_json(
        write_boxes(folder / "boxes.csv", rows),
        write_descriptions(folder / "classes.csv"),
        classes=classes,
        images=write_photos(folder / "data", photos),
        out=folder / "labels" / "openimages-mlperf.json",
        console=Console(file=options.pop("log", io.StringIO()), width=200),
        **options,
    )


def written(folder: Path) -> Any:
    return json.loads((folder / "labels" / "openimages-mlperf.json").read_text())


def test_every_field_of_a_tricky_file(tmp_path: Path) -> None:
    summary = export(tmp_path, TRICKY, ["Dog", "Cat"], photos=[1, 2, 3])
    assert summary == Summary(classes=2, images=2, images_left_out=0, boxes=4)
    content = written(tmp_path)
    assert list(content) == ["info", "licenses", "categories", "images", "annotations"]
    assert content["info"]["description"] == "OpenImages, 2 classes, from boxes.csv"
    assert content["licenses"] == []
    assert content["categories"] == [
        {"id": 0, "name": "Dog", "supercategory": None},
        {"id": 1, "name": "Cat", "supercategory": None},
    ]
    rest = {"license": None, "coco_url": None}
    assert content["images"] == [
        {"id": 1, "file_name": "0000000000000001.jpg", "height": 31, "width": 41, **rest},
        {"id": 2, "file_name": "0000000000000003.jpg", "height": 33, "width": 43, **rest},
    ]
    dog = [0.123457 * 41, 0.0, (0.5 - 0.123457) * 41, 31.0]
    flat = [0.6 * 41, 15.5, 0.0, 7.75]
    group = [0.1 * 43, 0.2 * 33, (0.3 - 0.1) * 43, (0.7 - 0.2) * 33]
    assert content["annotations"] == [
        {"id": 1, "image_id": 1, "category_id": 0, "bbox": dog, "area": dog[2] * 31, "iscrowd": 0}
        | NO_FLAGS
        | {"IsOccluded": True, "IsTruncated": True, "IsDepiction": True},
        {"id": 2, "image_id": 1, "category_id": 1, "bbox": flat, "area": 0.0, "iscrowd": 1}
        | NO_FLAGS
        | {"IsGroupOf": True},
        {"id": 3, "image_id": 2, "category_id": 1, "bbox": group, "iscrowd": 1}
        | {"area": group[2] * group[3]}
        | NO_FLAGS
        | {"IsGroupOf": True},
        {"id": 4, "image_id": 2, "category_id": 1, "bbox": [0, 0, 43, 33], "iscrowd": 0}
        | {"area": 43 * 33}
        | NO_FLAGS
        | {"IsInside": True},
    ]


def expected_annotations(boxes_csv: Path, names: list[str]) -> list[dict[str, Any]]:
    """The rules once more, a row at a time."""
    with boxes_csv.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if LABELS[row["LabelName"]] in names]
    image_ids = sorted({row["ImageID"] for row in rows})
    rows.sort(key=lambda row: row["ImageID"])
    annotations: list[dict[str, Any]] = []
    for row in rows:
        width, height = size_of(int(row["ImageID"], 16))
        left, right, top, bottom = (float(row[name]) for name in ("XMin", "XMax", "YMin", "YMax"))
        bbox = [left * width, top * height, (right - left) * width, (bottom - top) * height]
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": image_ids.index(row["ImageID"]) + 1,
                "category_id": names.index(LABELS[row["LabelName"]]),
                "bbox": bbox,
                "area": bbox[2] * bbox[3],
                "iscrowd": int(bool(int(row["IsGroupOf"]))),
                **{name: bool(int(row[name])) for name in NO_FLAGS},
            }
        )
    return annotations


def test_random_boxes_to_the_last_bit(tmp_path: Path) -> None:
    rows = random_rows(images=60, boxes=1000)
    names = ["Tortoise", "Cat", "Dog"]
    export(tmp_path, rows, names, photos=[row.image for row in rows])
    assert written(tmp_path)["annotations"] == expected_annotations(tmp_path / "boxes.csv", names)


def test_pycocotools_and_read_annotations_take_it(tmp_path: Path) -> None:
    rows = random_rows(images=40, boxes=600)
    export(tmp_path, rows, ["all"], photos=[row.image for row in rows])
    out = tmp_path / "labels" / "openimages-mlperf.json"
    expected = expected_annotations(tmp_path / "boxes.csv", sorted(LABELS.values()))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(out))
    assert coco.loadAnns(coco.getAnnIds()) == expected
    assert [category["name"] for category in coco.loadCats(coco.getCatIds())] == [
        "Cat",
        "Dog",
        "Person",
        "Tortoise",
    ]
    ours = read_annotations(out)
    assert list(ours.category_names) == ["Cat", "Dog", "Person", "Tortoise"]
    assert ours.category_ids.tolist() == [0, 1, 2, 3]
    xywh = np.array([annotation["bbox"] for annotation in expected])
    assert np.array_equal(ours.boxes, np.hstack([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]]))
    for column, field in (
        (ours.box_is_crowd, "iscrowd"),
        (ours.box_category_ids, "category_id"),
        (ours.box_areas, "area"),
        (ours.box_ids, "id"),
    ):
        assert column.tolist() == [annotation[field] for annotation in expected]


def test_an_image_list_restricts_the_images(tmp_path: Path) -> None:
    ids = write_image_ids(tmp_path / "ids.csv", [3, 2, 9])
    export(tmp_path, TRICKY, ["Cat"], photos=[1, 2, 3], image_ids=ids)
    content = written(tmp_path)
    assert [image["file_name"] for image in content["images"]] == ["0000000000000003.jpg"]
    assert [box["image_id"] for box in content["annotations"]] == [1, 1]


def test_all_classes_with_an_image_list_keep_images_without_boxes(tmp_path: Path) -> None:
    ids = write_image_ids(tmp_path / "ids.csv", [7, 3, 2])
    summary = export(tmp_path, TRICKY, ["all"], photos=[1, 2, 3, 7], image_ids=ids)
    content = written(tmp_path)
    names = [f"{image:016x}.jpg" for image in (2, 3, 7)]
    assert [image["file_name"] for image in content["images"]] == names
    assert [box["image_id"] for box in content["annotations"]] == [1, 2, 2, 2]
    assert summary == Summary(classes=4, images=3, images_left_out=0, boxes=4)


def test_an_image_list_whose_images_have_no_boxes_at_all(tmp_path: Path) -> None:
    ids = write_image_ids(tmp_path / "ids.csv", [7])
    export(tmp_path, TRICKY, ["all"], photos=[7], image_ids=ids)
    assert written(tmp_path)["annotations"] == [] and len(written(tmp_path)["images"]) == 1


def test_missing_images_are_refused_or_left_out(tmp_path: Path) -> None:
    expected = (
        "data: 1 of 2 images are missing, the first is 0000000000000001.jpg; download them, or "
        "leave them out with --skip-missing-images"
    )
    with pytest.raises(InputError, match=expected):
        export(tmp_path, TRICKY, ["Cat"], photos=[3])
    assert not (tmp_path / "labels" / "openimages-mlperf.json").exists()
    summary = export(tmp_path, TRICKY, ["Cat"], photos=[3], skip_missing_images=True)
    assert summary == Summary(classes=1, images=1, images_left_out=1, boxes=2)
    assert [box["bbox"][0] for box in written(tmp_path)["annotations"]] == [0.1 * 43, 0.0]


def test_the_last_image_is_left_out_as_any_other(tmp_path: Path) -> None:
    export(tmp_path, TRICKY, ["Cat"], photos=[1], skip_missing_images=True)
    assert [box["bbox"][0] for box in written(tmp_path)["annotations"]] == [0.6 * 41]


def test_no_image_at_all_is_refused_even_if_missing_ones_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of 2 images is there"):
        export(tmp_path, TRICKY, ["Cat"], photos=[], skip_missing_images=True)


def test_classes_without_a_box_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"boxes\.csv: no image has a box of the 1 classes"):
        export(tmp_path, TRICKY, ["Tortoise"], photos=[1])


def test_an_output_that_is_there_stays_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "labels" / "openimages-mlperf.json"
    out.parent.mkdir()
    out.write_text("precious")
    with pytest.raises(InputError, match="is there already"):
        export(tmp_path, TRICKY, ["Cat"], photos=[1, 3])
    assert out.read_text() == "precious"
    export(tmp_path, TRICKY, ["Cat"], photos=[1, 3], overwrite=True)
    assert len(written(tmp_path)["annotations"]) == 3


def test_a_failure_leaves_the_old_output_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> Iterator[list[object]]:
        yield []
        raise OSError(28, "No space left on device")

    export(tmp_path, TRICKY, ["Cat"], photos=[1, 3])
    before = written(tmp_path)
    monkeypatch.setattr("data.openimages.export._annotations", fail)
    with pytest.raises(InputError, match=r"mlperf\.json: cannot be written: No space left"):
        export(tmp_path, TRICKY, ["Dog"], photos=[1, 3], overwrite=True)
    assert written(tmp_path) == before
    assert [path.name for path in (tmp_path / "labels").iterdir()] == ["openimages-mlperf.json"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text("a file")
    with pytest.raises(InputError, match="labels: cannot be made"):
        export(tmp_path, TRICKY, ["Cat"], photos=[1, 3])


def test_each_stage_shows_its_progress(tmp_path: Path) -> None:
    log = io.StringIO()
    export(tmp_path, TRICKY, ["Cat"], photos=[1, 3], log=log)
    lines = log.getvalue().splitlines()
    assert [line.split(" 0:")[0].rstrip() for line in lines] == [
        "reading sizes of images 2/2",
        "writing openimages-mlperf.json, boxes 3/3",
    ]
