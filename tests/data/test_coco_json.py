import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import InputError
from data.annotations import Annotations
from data.coco_json import read_annotations


def small() -> dict[str, Any]:
    """Three images; boxes out of image order; the second image has none."""
    return {
        "images": [
            {"id": 30, "file_name": "c.jpg", "width": 40, "height": 20},
            {"id": 10, "file_name": "a/a.jpg", "width": 64, "height": 48},
            {"id": 20, "file_name": "b.jpg", "width": 50, "height": 50},
        ],
        "annotations": [
            {"id": 5, "image_id": 20, "category_id": 7, "bbox": [1, 2, 3, 4], "area": 9.5},
            {"id": 6, "image_id": 30, "category_id": 90, "bbox": [0.5, 1.5, 10, 5], "iscrowd": 0},
            {"id": 9, "image_id": 20, "category_id": 90, "bbox": [5, 6, 7.25, 8], "iscrowd": 1},
        ],
        "categories": [{"id": 90, "name": "toothbrush"}, {"id": 7, "name": "train"}],
    }


def read(folder: Path, content: object) -> Annotations:
    path = folder / "labels.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_annotations(path)


def message(folder: Path, content: object) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, content)
    text = str(caught.value)
    assert "\n" not in text
    prefix = f"{folder / 'labels.json'}: "
    assert text.startswith(prefix)
    return text.removeprefix(prefix)


def test_columns_keep_the_json_order_and_group_boxes_by_image(tmp_path: Path) -> None:
    a = read(tmp_path, small())
    assert len(a) == 3
    assert a.category_ids.tolist() == [90, 7] and a.category_names == ("toothbrush", "train")
    assert a.image_ids.tolist() == [30, 10, 20]
    assert list(a.file_names) == ["c.jpg", "a/a.jpg", "b.jpg"]
    assert a.widths.tolist() == [40, 64, 50] and a.heights.tolist() == [20, 48, 50]
    assert a.box_offsets.tolist() == [0, 1, 1, 3]
    assert a.boxes.tolist() == [[0.5, 1.5, 10.5, 6.5], [1, 2, 4, 6], [5, 6, 12.25, 14]]
    assert a.box_ids.tolist() == [6, 5, 9]
    assert a.box_category_ids.tolist() == [90, 7, 90]
    assert a.boxes_of(1) == slice(1, 1) and a.boxes_of(2) == slice(1, 3)
    assert a.box_offsets.dtype == a.image_ids.dtype == np.int64
    assert a.widths.dtype == np.int32 and a.box_is_crowd.dtype == np.bool_


def test_area_is_the_jsons_or_else_width_times_height(tmp_path: Path) -> None:
    assert read(tmp_path, small()).box_areas.tolist() == [50, 9.5, 58]


@pytest.mark.parametrize(
    "mark",
    [
        {"iscrowd": 1},
        {"iscrowd": True},
        {"IsGroupOf": 1},
        {"isgroupof": True},
        {"attributes": {"IsGroupOf": True}},
        {"attributes": {"isgroupof": 1}},
    ],
)
def test_crowds_and_groups_are_marked(tmp_path: Path, mark: dict[str, object]) -> None:
    content = small()
    for entry in content["annotations"]:
        entry.pop("iscrowd", None)
    content["annotations"][0].update(mark)
    assert read(tmp_path, content).box_is_crowd.tolist() == [False, True, False]


def test_missing_annotation_ids_are_numbered_from_one(tmp_path: Path) -> None:
    content = small()
    for entry in content["annotations"]:
        del entry["id"]
    assert read(tmp_path, content).box_ids.tolist() == [2, 1, 3]


def test_a_file_without_boxes_is_read(tmp_path: Path) -> None:
    a = read(tmp_path, small() | {"annotations": []})
    assert a.boxes.shape == (0, 4) and a.box_offsets.tolist() == [0, 0, 0, 0]
    assert a.box_is_crowd.dtype == np.bool_ and a.box_category_ids.dtype == np.int64


def test_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(small()).encode())
    assert len(read_annotations(path)) == 3


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"images": [],\n"annotations": oops}', "line 2, column 16: not JSON"),
        ("", "line 1, column 1: not JSON"),
        ("[" * 100_000, "not JSON that can be read"),
        ("[1, 2]", "not COCO's format"),
        ({"images": [], "annotations": []}, "categories: missing, so this is not COCO's"),
        ({"annotations": [], "categories": []}, "images: missing"),
        (small() | {"images": {}}, "images: expected a list, found {}"),
        (small() | {"images": []}, "images: empty"),
        (small() | {"categories": []}, "categories: empty"),
        (small() | {"annotations": "none"}, 'annotations: expected a list, found "none"'),
    ],
)
def test_a_file_that_is_not_cocos(tmp_path: Path, content: object, expected: str) -> None:
    assert message(tmp_path, content).startswith(expected)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_annotations(tmp_path / "none.json")


DELETE = object()


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (("images", 1, None), 5, "images[1]: expected an object, found 5"),
        (("annotations", 2, None), ["id"], 'annotations[2]: expected an object, found ["id"]'),
        (("images", 1, "id"), DELETE, "images[1].id: missing"),
        (("images", 2, "file_name"), DELETE, "images[2].file_name: missing"),
        (("images", 2, "width"), DELETE, "images[2].width: missing"),
        (("annotations", 2, "bbox"), DELETE, "annotations[2].bbox: missing"),
        (("annotations", 2, "id"), DELETE, "annotations[2].id: missing"),
        (("annotations", 0, "category_id"), DELETE, "annotations[0].category_id: missing"),
        (("categories", 1, "name"), DELETE, "categories[1].name: missing"),
        (("images", 1, "id"), "0a3f", 'images[1].id: expected an integer, found "0a3f"'),
        (("images", 1, "id"), True, "images[1].id: expected an integer, found true"),
        (("images", 1, "id"), 2**70, "images[1].id: expected an integer, found 118059"),
        (("images", 1, "id"), 30, "images[1].id: 30 was given to an earlier entry"),
        (("categories", 1, "id"), 90, "categories[1].id: 90 was given to an earlier entry"),
        (("annotations", 2, "id"), 5, "annotations[2].id: 5 was given to an earlier entry"),
        (("images", 0, "width"), 0, "images[0].width: expected an integer from 1 to 2147483647"),
        (("images", 0, "height"), 20.5, "images[0].height: expected an integer from 1"),
        (("images", 0, "file_name"), 3, "images[0].file_name: expected a string"),
        (("images", 0, "file_name"), "", "images[0].file_name: expected a string"),
        (("images", 0, "file_name"), "/etc/x.jpg", "images[0].file_name: expected a path inside"),
        (("images", 0, "file_name"), "a/../../x", "images[0].file_name: expected a path inside"),
        (("annotations", 1, "image_id"), 31, "annotations[1].image_id: 31 is no id in images"),
        (("annotations", 1, "image_id"), "30", "annotations[1].image_id: expected an integer"),
        (("annotations", 1, "category_id"), 8, "annotations[1].category_id: 8 is no id in categor"),
        (
            ("annotations", 1, "bbox"),
            [1, 2, 3],
            "annotations[1].bbox: expected [x, y, width, height",
        ),
        (("annotations", 1, "bbox"), "1234", "annotations[1].bbox: expected [x, y, width, height"),
        (("annotations", 1, "bbox"), 7, "annotations[1].bbox: expected [x, y, width, height"),
        (("annotations", 1, "bbox"), None, "annotations[1].bbox: expected [x, y, width, height"),
        (("annotations", 1, "bbox"), [1, 2, "3", 4], "annotations[1].bbox: expected [x, y, width"),
        (("annotations", 1, "bbox"), [1, 2, None, 4], "annotations[1].bbox: expected [x, y, width"),
        (("annotations", 1, "bbox"), [1, 2, True, 4], "annotations[1].bbox: expected [x, y, width"),
        (
            ("annotations", 1, "bbox"),
            [1, float("nan"), 3, 4],
            "annotations[1].bbox: expected [x, y",
        ),
        (
            ("annotations", 1, "bbox"),
            [1, 2, float("inf"), 4],
            "annotations[1].bbox: expected [x, y",
        ),
        (("annotations", 1, "bbox"), [1, 2, 10**400, 4], "annotations[1].bbox: expected [x, y"),
        (("annotations", 1, "bbox"), [1, 2, 2e9, 4], "annotations[1].bbox: expected [x, y, width"),
        (("annotations", 1, "bbox"), [1, 2, 3, -4], "annotations[1].bbox: expected [x, y, width"),
        (("annotations", 1, "area"), "9", 'annotations[1].area: expected a number ≥ 0, found "9"'),
        (("annotations", 1, "area"), -1, "annotations[1].area: expected a number ≥ 0, found -1"),
        (("annotations", 1, "iscrowd"), 2, "annotations[1].iscrowd: expected 0 or 1, found 2"),
        (("annotations", 1, "iscrowd"), "0", 'annotations[1].iscrowd: expected 0 or 1, found "0"'),
    ],
)
def test_a_bad_entry_is_named_with_its_index_and_field(
    tmp_path: Path, place: tuple[str, int, str | None], value: object, expected: str
) -> None:
    table, index, field = place
    content = small()
    if field is None:
        content[table][index] = value
    elif value is DELETE:
        del content[table][index][field]
    else:
        content[table][index][field] = value
    assert message(tmp_path, content).startswith(expected)


def test_dots_inside_a_file_name_are_no_way_out(tmp_path: Path) -> None:
    content = small()
    content["images"][0]["file_name"] = "a..b/c...jpg"
    assert read(tmp_path, content).file_names[0] == "a..b/c...jpg"


def test_many_boxes_match_a_plain_loop(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 9, "height": 9} for i in range(50)]
    random.shuffle(images)
    entries = [
        {"id": i, "image_id": int(random.integers(50)), "category_id": 1, "bbox": [i, 0, 1, 1]}
        for i in range(1000)
    ]
    categories = [{"id": 1, "name": "x"}]
    content = {"images": images, "annotations": entries, "categories": categories}
    a = read(tmp_path, content)
    for row, image in enumerate(images):
        expected = [entry["id"] for entry in entries if entry["image_id"] == image["id"]]
        assert a.box_ids[a.boxes_of(row)].tolist() == expected
        assert a.boxes[a.boxes_of(row)][:, 0].tolist() == expected
