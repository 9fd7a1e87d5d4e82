"""COCO-format JSON: columns, messages about bad entries, and the reader of lists in parts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import data.json_lists
from common.errors import InputError
from data.annotations import Annotations, Split
from data.coco_json import read_annotations
from data.findings import Findings
from data.formats.convert import DEFAULT_RULES
from data.json_lists import stream_lists
from data.verify.splits import check_annotations
from tests.data.samples import assert_same_annotations, write_json
from tests.support.commands import error_message


def small() -> dict[str, Any]:
    """Return three images; boxes are not in image order; the second image has none."""
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
    return read_annotations(write_json(folder / "labels.json", content))


def refusal(folder: Path, content: object) -> str:
    text = error_message(read, folder, content)
    prefix = f"{folder / 'labels.json'}: "
    assert text.startswith(prefix)
    return text.removeprefix(prefix)


def test_columns_keep_the_json_order_and_group_boxes_by_image(tmp_path: Path) -> None:
    content = small()
    content["images"][1]["file_name"] = "a..b/c...jpg"
    a = read(tmp_path, content)
    assert len(a) == 3
    assert a.category_ids.tolist() == [90, 7] and a.category_names == ("toothbrush", "train")
    assert a.image_ids.tolist() == [30, 10, 20]
    assert list(a.file_names) == ["c.jpg", "a..b/c...jpg", "b.jpg"]
    assert a.widths.tolist() == [40, 64, 50] and a.heights.tolist() == [20, 48, 50]
    assert a.box_offsets.tolist() == [0, 1, 1, 3]
    assert a.boxes.tolist() == [[0.5, 1.5, 10.5, 6.5], [1, 2, 4, 6], [5, 6, 12.25, 14]]
    assert a.box_ids.tolist() == [6, 5, 9] and a.box_category_ids.tolist() == [90, 7, 90]
    assert a.box_areas.tolist() == [50, 9.5, 58]  # width × height where it is missing
    assert a.box_slice(1) == slice(1, 1) and a.box_slice(2) == slice(1, 3)
    assert a.box_offsets.dtype == a.image_ids.dtype == np.int64
    assert a.widths.dtype == np.int32 and a.box_is_crowd.dtype == np.bool_


MARKS: list[dict[str, Any]] = [{"iscrowd": 1}, {"iscrowd": True}]
GROUPS = [{"IsGroupOf": 1}, {"isgroupof": True}, {"IsGroupOf": True}, {"isgroupof": 1}]


@pytest.mark.parametrize("mark", MARKS + GROUPS[:2] + [{"attributes": each} for each in GROUPS[2:]])
def test_crowd_and_group_flags(tmp_path: Path, mark: dict[str, object]) -> None:
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


def test_file_without_boxes(tmp_path: Path) -> None:
    a = read(tmp_path, small() | {"annotations": []})
    assert a.boxes.shape == (0, 4) and a.box_offsets.tolist() == [0, 0, 0, 0]
    assert a.box_is_crowd.dtype == np.bool_ and a.box_category_ids.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"images": [],\n"annotations": oops}', "line 2, column 16: not JSON"),
        ("", "line 1, column 1: not JSON"),
        ("[" * 100_000, "cannot be parsed as JSON"),
        ("[1, 2]", "not COCO's format"),
        ({"images": [], "annotations": []}, "categories: missing; this is not COCO's format"),
        ({"flags": {}, "shapes": []}, "categories: missing; this is labelme's format"),
        (small() | {"images": {}}, "images: expected a list, found {}"),
        (small() | {"images": []}, "images: empty"),
        (small() | {"annotations": "none"}, 'annotations: expected a list, found "none"'),
    ],
)
def test_other_file_is_refused(tmp_path: Path, content: object, expected: str) -> None:
    assert refusal(tmp_path, content).startswith(expected)


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    with pytest.raises(InputError, match=r"labels\.json: cannot be read: No such file"):
        read_annotations(path)
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(small()).encode())
    assert len(read_annotations(path)) == 3


def test_odd_values_are_those_that_they_mean(tmp_path: Path) -> None:
    expected = read(tmp_path, small())
    content = small()
    for entry in content["annotations"]:
        entry["image_id"] = str(entry["image_id"])
        entry["category_id"] = float(entry["category_id"])
        entry["iscrowd"] = entry.get("iscrowd") or None
        entry["attributes"] = None
        x, y, width, height = entry["bbox"]
        entry["segmentation"] = [[x, y, x + width, y, x + width, y + height]]
        entry["bbox"] = None
    content["images"][0]["id"] = "30"
    content["images"][1]["width"] = 64.0
    path = write_json(tmp_path / "labels.json", content)
    findings = Findings(refusing=path)
    assert_same_annotations(read_annotations(path, findings=findings), expected)
    assert {each.name: each.count for each in findings.taken()} == {
        "value_taken": 10,
        "box_of_polygon": 3,
    }


ROOT = {"id": 0, "name": "things", "supercategory": "none"}


@pytest.mark.parametrize(
    ("root", "boxes", "is_left_out"),
    [(ROOT, 0, True), (ROOT, 1, False), (ROOT | {"name": "none"}, 0, False)],
)
def test_root_of_roboflows_categories_is_no_class(
    tmp_path: Path, root: dict[str, object], boxes: int, is_left_out: bool
) -> None:
    content = small()
    for category in content["categories"]:
        category["supercategory"] = root["name"]
    content["categories"].append(root)
    for entry in content["annotations"][:boxes]:
        entry["category_id"] = 0
    path = write_json(tmp_path / "labels.json", content)
    findings = Findings(refusing=path)
    names = read_annotations(path, findings=findings).category_names
    rules = replace(DEFAULT_RULES, num_classes=len(names))
    checked = check_annotations("train", Split(path, tmp_path), rules, console=Console(quiet=True))
    assert checked.entries is not None
    assert list(names) == list(checked.entries.category_names)
    assert list(names) == ["toothbrush", "train", *([] if is_left_out else [root["name"]])]
    assert [each.name for each in findings.taken()] == (["category_root"] if is_left_out else [])
    assert checked.findings.has("category_root") == is_left_out and not checked.findings.stopping()


@pytest.mark.parametrize(
    "segmentation", [[], [[]], [[1, 2, "3", 4]], {"counts": "aa"}, [[1, 2, 3]]]
)
def test_box_of_no_polygon_is_refused(tmp_path: Path, segmentation: object) -> None:
    content = small()
    content["annotations"][1] |= {"bbox": [], "segmentation": segmentation}
    assert "annotations[1].bbox: expected [x, y, width" in refusal(tmp_path, content)


def test_rotated_box_is_enclosed_and_clipped(tmp_path: Path) -> None:
    """As CVAT writes it: the box as it was before the rotation, which is about its centre."""
    content = small()
    attributes = {"occluded": False, "rotation": 90.0}
    content["annotations"][0] |= {"bbox": [5, 20, 40, 10], "attributes": attributes}
    content["annotations"][2] |= {"bbox": [5, 0, 40, 10], "attributes": {"rotation": 450}}
    content["annotations"][1]["attributes"] = {"rotation": 0.0}
    a = read(tmp_path, content)
    assert a.boxes.round(9).tolist() == [[0.5, 1.5, 10.5, 6.5], [20, 5, 30, 45], [20, 0, 30, 25]]


def test_shares_instead_of_pixels_are_refused(tmp_path: Path) -> None:
    content = small()
    for entry in content["annotations"]:
        entry["bbox"] = [0.5, 0.25, 0.5, 0.75]
    message = refusal(tmp_path, content)
    assert message.startswith("annotations: all boxes are from 0 to 1, shares of their images")
    content["annotations"][1]["bbox"] = [0.5, 0.25, 9, 9]
    assert len(read(tmp_path, content).boxes) == 3


def test_many_boxes_are_grouped_as_by_a_plain_loop(tmp_path: Path) -> None:
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
        assert a.box_ids[a.box_slice(row)].tolist() == expected
        assert a.boxes[a.box_slice(row)][:, 0].tolist() == expected


NAMES = ("images", "annotations")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "labels.json"


def read_lists(path: Path, text: str) -> dict[str, list[Any]]:
    path.write_bytes(text.encode(errors="surrogateescape"))
    lists: dict[str, list[Any]] = {}
    for name, entries in stream_lists(path, NAMES):
        lists.setdefault(name, []).extend(entries)
    return lists


def stream_error(path: Path, text: str) -> str:
    return error_message(read_lists, path, text).removeprefix(f"{path}: ")


def stream_content() -> dict[str, Any]:
    random = np.random.default_rng(0)
    texts = ['quote " and \\', "[not a list], {nor an object}", "日本 ñ 😀", "line\nbreak"]
    entries = [
        [number, {"text": texts[number % 4], "deep": [[{}], []]}, float(random.normal()), None]
        for number in range(150)
    ]
    return {"info": {"images": ["no"]}, "images": entries, "n": -1.5e9, "annotations": [1, 2.5, 30]}


@pytest.mark.parametrize("read_at_once", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize(("indent", "ascii_only"), [(None, False), (2, True)])
def test_stream_equals_json_loads_for_any_window_size(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    read_at_once: int,
    indent: int | None,
    ascii_only: bool,
) -> None:
    text = json.dumps(stream_content(), indent=indent, ensure_ascii=ascii_only)
    monkeypatch.setattr(data.json_lists, "READ_AT_ONCE", read_at_once)
    monkeypatch.setattr(data.json_lists, "ENTRIES_AT_ONCE", 17)
    assert read_lists(path, text) == {name: json.loads(text)[name] for name in NAMES}


@pytest.mark.parametrize("read_at_once", [1, 50, 1 << 20])
def test_syntax_error_has_the_line_of_json_loads(
    path: Path, monkeypatch: pytest.MonkeyPatch, read_at_once: int
) -> None:
    monkeypatch.setattr(data.json_lists, "READ_AT_ONCE", read_at_once)
    whole = json.dumps(stream_content(), indent=1)
    random = np.random.default_rng(1)
    for place in random.integers(len(whole), size=30).tolist():
        broken = whole[:place] + "@" + whole[place + 1 :]
        try:
            json.loads(broken)
        except json.JSONDecodeError as error:
            assert stream_error(path, broken).startswith(f"line {error.lineno}, column "), place
        else:
            read_lists(path, broken)  # the place was inside a string


def test_truncated_file_is_refused(path: Path) -> None:
    whole = json.dumps({"images": [{"a": "b"}, 12], "annotations": [1.5, [True]]})
    for length in range(len(whole)):
        assert "not JSON" in stream_error(path, whole[:length]), length


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"images": [], "annotations": []} x', "line 1, column 35: not JSON: extra characters"),
        ('{"images": [1,], "annotations": []}', "line 1, column 15: not JSON: Expecting value"),
        ("{images: []}", "line 1, column 2: not JSON: expected a name"),
        ('{"images" []}', "line 1, column 11: not JSON: expected :"),
        ('{"images": [1 2]}', "line 1, column 15: not JSON: expected , or ]"),
        ('{"images": "' + "x" * 300, "line 1, column 12: not JSON: Unterminated string"),
        ('{"images": ["\udcff\udcfe"]}', "cannot be parsed as JSON"),
    ],
)
def test_syntax_error_message(path: Path, text: str, expected: str) -> None:
    assert stream_error(path, text).startswith(expected)


def test_nan_and_infinity_are_read(path: Path) -> None:
    text = '{"images": [NaN, -Infinity], "annotations": []}'
    assert str(read_lists(path, text)["images"]) == "[nan, -inf]"


def test_progress_ends_at_the_file_size(path: Path) -> None:
    write_json(path, stream_content())
    seen: list[int] = []
    for _ in stream_lists(path, NAMES, advance=lambda done, _: seen.append(done)):
        pass
    assert seen == sorted(seen) and seen[-1] == path.stat().st_size
