"""COCO-format JSON: columns, messages about bad entries, and the reader of lists in parts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data.coco_json
from common.errors import InputError
from data.annotations import Annotations
from data.coco_json import read_annotations, stream_lists
from tests.data.samples import write_json


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
    assert a.box_slice(1) == slice(1, 1) and a.box_slice(2) == slice(1, 3)
    assert a.box_offsets.dtype == a.image_ids.dtype == np.int64
    assert a.widths.dtype == np.int32 and a.box_is_crowd.dtype == np.bool_


def test_missing_area_is_width_times_height(tmp_path: Path) -> None:
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


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(small()).encode())
    assert len(read_annotations(path)) == 3


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"images": [],\n"annotations": oops}', "line 2, column 16: not JSON"),
        ("", "line 1, column 1: not JSON"),
        ("[" * 100_000, "cannot be parsed as JSON"),
        ("[1, 2]", "not COCO's format"),
        ({"images": [], "annotations": []}, "categories: missing; this is not COCO's"),
        ({"annotations": [], "categories": []}, "images: missing"),
        (small() | {"images": {}}, "images: expected a list, found {}"),
        (small() | {"images": []}, "images: empty"),
        (small() | {"categories": []}, "categories: empty"),
        (small() | {"annotations": "none"}, 'annotations: expected a list, found "none"'),
    ],
)
def test_other_file_is_refused(tmp_path: Path, content: object, expected: str) -> None:
    assert message(tmp_path, content).startswith(expected)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_annotations(tmp_path / "none.json")


DELETE = object()
BBOX = "annotations[1].bbox: expected [x, y, width, height"


@pytest.mark.parametrize(
    ("name", "index", "field", "value", "expected"),
    [
        ("images", 1, None, 5, "images[1]: expected an object, found 5"),
        ("images", 1, "id", DELETE, "images[1].id: missing"),
        ("annotations", 2, "bbox", DELETE, "annotations[2].bbox: missing"),
        ("annotations", 2, "id", DELETE, "annotations[2].id: missing"),
        ("images", 1, "id", "0a3f", 'images[1].id: expected an integer, found "0a3f"'),
        ("images", 1, "id", True, "images[1].id: expected an integer, found true"),
        ("images", 1, "id", 2**70, "images[1].id: expected an integer, found 118059"),
        ("images", 1, "id", 30, "images[1].id: 30 is the id of an earlier entry"),
        ("categories", 1, "id", 90, "categories[1].id: 90 is the id of an earlier entry"),
        ("annotations", 2, "id", 5, "annotations[2].id: 5 is the id of an earlier entry"),
        ("images", 0, "width", 0, "images[0].width: expected an integer from 1 to 2147483647"),
        ("images", 0, "height", 20.5, "images[0].height: expected an integer from 1"),
        ("images", 0, "file_name", "", "images[0].file_name: expected a string"),
        ("images", 0, "file_name", "/etc/x.jpg", "images[0].file_name: expected a path inside"),
        ("images", 0, "file_name", "a/../../x", "images[0].file_name: expected a path inside"),
        ("annotations", 1, "image_id", 31, "annotations[1].image_id: 31 is not an id in images"),
        ("annotations", 1, "category_id", 8, "annotations[1].category_id: 8 is not an id in cat"),
        ("annotations", 1, "bbox", [1, 2, 3], BBOX),
        ("annotations", 1, "bbox", [1, float("nan"), 3, 4], BBOX),
        ("annotations", 1, "bbox", [1, 2, 10**400, 4], BBOX),
        ("annotations", 1, "bbox", [1, 2, 3, -4], BBOX),
        ("annotations", 1, "area", "9", 'annotations[1].area: expected a number ≥ 0, found "9"'),
        ("annotations", 1, "iscrowd", 2, "annotations[1].iscrowd: expected 0 or 1, found 2"),
    ],
)
def test_bad_entry_is_reported_with_index_and_field(
    tmp_path: Path, *, name: str, index: int, field: str | None, value: object, expected: str
) -> None:
    """`verify/test_annotations.py` has every kind of bad value; these are the messages."""
    content = small()
    if field is None:
        content[name][index] = value
    elif value is DELETE:
        del content[name][index][field]
    else:
        content[name][index][field] = value
    assert message(tmp_path, content).startswith(expected)


def test_dots_inside_a_file_name_are_allowed(tmp_path: Path) -> None:
    content = small()
    content["images"][0]["file_name"] = "a..b/c...jpg"
    assert read(tmp_path, content).file_names[0] == "a..b/c...jpg"


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


def read_lists(path: Path) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for name, entries in stream_lists(path, NAMES, advance=lambda done: None):
        lists.setdefault(name, []).extend(entries)
    return lists


def stream_error(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_lists(path)
    return str(caught.value).removeprefix(f"{path}: ")


def stream_content() -> dict[str, Any]:
    random = np.random.default_rng(0)
    texts = [
        'quote " and \\',
        "[not a list], {nor an object}",
        "日本 ñ 😀",
        "line\nbreak",
    ]
    entries = [
        [number, {"text": texts[number % 4], "deep": [[{}], []]}, float(random.normal()), None]
        for number in range(150)
    ]
    return {"info": {"images": ["no"]}, "images": entries, "n": -1.5e9, "annotations": [1, 2.5, 30]}


@pytest.mark.parametrize("read_at_once", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize(("indent", "ascii_only"), [(None, False), (2, True)])
def test_stream_equals_json_loads_for_any_window_size(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read_at_once: int,
    indent: int | None,
    ascii_only: bool,
) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(stream_content(), indent=indent, ensure_ascii=ascii_only), "utf-8")
    monkeypatch.setattr(data.coco_json, "READ_AT_ONCE", read_at_once)
    monkeypatch.setattr(data.coco_json, "ENTRIES_AT_ONCE", 17)
    expected = json.loads(path.read_bytes())
    assert read_lists(path) == {name: expected[name] for name in NAMES}


@pytest.mark.parametrize("read_at_once", [1, 50, 1 << 20])
def test_syntax_error_has_the_line_of_json_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_at_once: int
) -> None:
    monkeypatch.setattr(data.coco_json, "READ_AT_ONCE", read_at_once)
    whole = json.dumps(stream_content(), indent=1)
    path = tmp_path / "labels.json"
    random = np.random.default_rng(1)
    for place in random.integers(len(whole), size=30).tolist():
        broken = whole[:place] + "@" + whole[place + 1 :]
        path.write_text(broken, encoding="utf-8")
        try:
            json.loads(broken)
        except json.JSONDecodeError as error:
            assert stream_error(path).startswith(f"line {error.lineno}, column "), place
        else:
            read_lists(path)  # the place was inside a string


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = json.dumps({"images": [{"a": "b"}, 12], "annotations": [1.5, [True]]})
    path = tmp_path / "labels.json"
    for length in range(len(whole)):
        path.write_text(whole[:length], encoding="utf-8")
        assert "not JSON" in stream_error(path), length


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"images": [], "annotations": []} x', "line 1, column 35: not JSON: extra characters"),
        ('{"images": [1,], "annotations": []}', "line 1, column 15: not JSON: Expecting value"),
        ("{images: []}", "line 1, column 2: not JSON: expected a name in double quotes"),
        ('{"images" []}', "line 1, column 11: not JSON: expected :"),
        ('{"images": [1 2]}', "line 1, column 15: not JSON: expected , or ]"),
        ('{"images": "' + "x" * 300, "line 1, column 12: not JSON: Unterminated string"),
    ],
)
def test_syntax_error_message(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "labels.json"
    path.write_text(text, encoding="utf-8")
    assert stream_error(path).startswith(expected)


def test_invalid_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_bytes(b'{"images": ["\xff\xfe"]}')
    assert "cannot be parsed as JSON" in stream_error(path)


def test_nan_and_infinity_are_read(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text('{"images": [NaN, -Infinity], "annotations": []}', encoding="utf-8")
    assert str(read_lists(path)["images"]) == "[nan, -inf]"


def test_progress_ends_at_the_file_size(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(stream_content(), ensure_ascii=False), encoding="utf-8")
    seen: list[int] = []
    for _ in stream_lists(path, NAMES, advance=seen.append):
        pass
    assert seen == sorted(seen) and seen[-1] == path.stat().st_size
