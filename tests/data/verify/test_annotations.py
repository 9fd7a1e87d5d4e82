"""Findings of annotations and categories, each compared with what training does."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

import data.json_lists
from common.errors import InputError
from data.annotations import Resize, TrainingRules
from data.augmentation import view_boxes, whole_view
from data.coco_json import read_annotations
from data.findings import KINDS
from data.index import write_index
from data.verify import annotations
from data.verify.splits import rows_to_check
from tests.data.verify.small_set import (
    IMAGES,
    Content,
    both_splits,
    counts,
    entries,
    small_content,
    train_on,
    verify,
    write_config,
    write_splits,
)
from tests.support.commands import error_message

DELETE = object()
INFINITE, NAN = float("inf"), float("nan")


Change = Callable[[Content], object]


def put(name: str, index: int, field: str | None, value: object) -> Change:
    def change(content: Content) -> None:
        if field is None:
            content[name][index] = value
        elif value is DELETE:
            del content[name][index][field]
        else:
            content[name][index][field] = value

    return change


def box(value: object, *indices: int) -> list[Change]:
    return [put("annotations", index, "bbox", value) for index in indices]


def remove_boxes(*ids: int) -> Change:
    def change(content: Content) -> None:
        content["annotations"] = [e for e in content["annotations"] if e["image_id"] not in ids]

    return change


def mark_crowds(*ids: int) -> Change:
    def change(content: Content) -> None:
        for entry in content["annotations"]:
            entry["iscrowd"] = int(entry["image_id"] in ids)

    return change


def bbox(value: object) -> Change:
    return put("annotations", 1, "bbox", value)


def attributes(value: object) -> Change:
    return put("annotations", 1, "attributes", value)


BBOX = "annotations[1].bbox"
STOPPING: list[tuple[str, Change, str]] = [
    ("entry_not_object", put("images", 1, None, 5), "images[1]"),
    ("entry_not_object", put("annotations", 2, None, ["id"]), "annotations[2]"),
    ("field_missing", put("images", 1, "id", DELETE), "images[1].id"),
    ("field_missing", put("annotations", 3, "bbox", DELETE), "annotations[3].bbox"),
    ("field_missing", put("annotations", 3, "image_id", DELETE), "annotations[3].image_id"),
    ("field_missing", put("categories", 1, "name", DELETE), "categories[1].name"),
    ("annotation_id_missing", put("annotations", 3, "id", DELETE), "annotations[3].id"),
    ("id_invalid", put("images", 1, "id", "0a3f"), "images[1].id"),
    ("id_invalid", put("images", 1, "id", True), "images[1].id"),
    ("id_invalid", put("images", 1, "id", 2**70), "images[1].id"),
    ("annotation_id_missing", put("annotations", 1, "id", None), "annotations[1].id"),
    ("id_invalid", put("annotations", 1, "image_id", "1e1"), "annotations[1].image_id"),
    ("id_invalid", put("annotations", 1, "image_id", None), "annotations[1].image_id"),
    ("id_invalid", put("annotations", 1, "image_id", 11.5), "annotations[1].image_id"),
    ("image_id_duplicate", put("images", 4, "id", 11), "images[4].id"),
    ("category_id_duplicate", put("categories", 2, "id", 3), "categories[2].id"),
    ("annotation_id_duplicate", put("annotations", 2, "id", 109), "annotations[9].id"),
    ("category_name_invalid", put("categories", 1, "name", ""), "categories[1].name"),
    ("file_name_invalid", put("images", 0, "file_name", ""), "images[0].file_name"),
    ("file_name_leaves_folder", put("images", 0, "file_name", "../0.jpg"), "images[0].file_name"),
    ("file_name_leaves_folder", put("images", 0, "file_name", "a/../../b"), "images[0].file_name"),
    ("image_size_missing", put("images", 0, "width", 0), "images[0].width"),
    ("image_size_missing", put("images", 0, "height", None), "images[0].height"),
    ("image_size_missing", put("images", 0, "height", DELETE), "images[0].height"),
    ("image_size_invalid", put("images", 0, "width", -1), "images[0].width"),
    ("image_size_invalid", put("images", 0, "height", 2**31), "images[0].height"),
    ("image_id_unknown", put("annotations", 1, "image_id", 99), "annotations[1].image_id"),
    ("category_id_unknown", put("annotations", 1, "category_id", 4), "annotations[1].category_id"),
    ("box_not_four_numbers", bbox([1, 2, 3]), BBOX),
    ("box_not_four_numbers", bbox("1234"), BBOX),
    ("box_not_four_numbers", bbox([1, 2, "3", 4]), BBOX),
    ("box_not_four_numbers", bbox([1, 2, True, 4]), BBOX),
    ("box_not_finite", bbox([1, NAN, 3, 4]), BBOX),
    ("box_not_finite", bbox([1, 2, INFINITE, 4]), BBOX),
    ("box_not_finite", bbox([1, 2, 10**400, 4]), BBOX),
    ("box_not_finite", bbox([1, 2, 2e9, 4]), BBOX),
    ("box_not_finite", bbox([1e308, 0, 1e308, 1]), BBOX),
    ("box_negative_side", bbox([9, 9, -3, 4]), BBOX),
    ("area_invalid", put("annotations", 1, "area", "9"), "annotations[1].area"),
    ("area_invalid", put("annotations", 1, "area", -1), "annotations[1].area"),
    ("crowd_flag_invalid", put("annotations", 1, "iscrowd", 2), "annotations[1].iscrowd"),
    ("crowd_flag_invalid", attributes({"IsGroupOf": 2}), "annotations[1].attributes.IsGroupOf"),
    (
        "boxes_in_shares",
        lambda content: [
            each.update(bbox=[0.1, 0.2, 0.5, 0.25]) for each in content["annotations"]
        ],
        "annotations",
    ),
    ("nothing_to_train_on", mark_crowds(*range(10, 10 + IMAGES)), "annotations"),
    ("no_images", lambda content: content.update(images=[]), "images"),
    ("no_categories", lambda content: content.update(categories=[]), "categories"),
    ("annotations_unreadable", lambda content: content.pop("images"), "labels.json"),
    ("annotations_unreadable", lambda content: content.update(images={}), "labels.json"),
]


BOX = "{}: expected [x, y, width, height]: 4 finite numbers, the last two ≥ 0 and none beyond 1e+09"
MESSAGES = {
    "entry_not_object": "{}: expected an object, found ",
    "field_missing": "{}: missing; COCO's format requires it",
    "annotation_id_missing": "{}: missing, but other entries have one; ",
    "id_invalid": "{}: expected an integer, found ",
    "category_id_duplicate": "{}: 3 is the id of an earlier entry; make ids unique",
    "annotation_id_duplicate": "{}: 109 is the id of an earlier entry; make ids unique",
    "category_name_invalid": '{}: expected a string that is not empty, found ""',
    "file_name_invalid": '{}: expected a string that is not empty, found ""',
    "file_name_leaves_folder": "{}: expected a path inside the folder of images, found ",
    "image_size_missing": "{}: expected an integer from 1 to 2147483647, found ",
    "image_size_invalid": "{}: expected an integer from 1 to 2147483647, found ",
    "image_id_unknown": "{}: 99 is not an id in images; ",
    "category_id_unknown": "{}: 4 is not an id in categories; ",
    **dict.fromkeys(("box_not_four_numbers", "box_not_finite", "box_negative_side"), BOX),
    "area_invalid": "{}: expected a number ≥ 0, found ",
    "crowd_flag_invalid": "{}: expected 0 or 1, found 2",
}
"""What a run says that stops at a finding, with its place."""


def polygon_only(content: Content) -> None:
    """Box 1 is `[3, 3, 20, 10]`."""
    content["annotations"][1].pop("bbox")
    content["annotations"][1]["segmentation"] = [[3, 13, 23, 5, 9, 3], [4, 4, 5, 5, 6, 4]]


HARMLESS: list[tuple[str, Change, str]] = [
    ("value_taken", put("annotations", 1, "iscrowd", None), "annotations[1].iscrowd"),
    ("value_taken", put("annotations", 1, "iscrowd", "0"), "annotations[1].iscrowd"),
    ("value_taken", put("annotations", 1, "image_id", 11.0), "annotations[1].image_id"),
    ("value_taken", put("annotations", 1, "category_id", "5"), "annotations[1].category_id"),
    ("value_taken", put("images", 1, "id", "11"), "images[1].id"),
    ("value_taken", put("images", 1, "width", 64.0), "images[1].width"),
    ("value_taken", put("categories", 1, "id", 5.0), "categories[1].id"),
    ("box_of_polygon", polygon_only, BBOX),
    ("box_rotated", attributes({"rotation": 30.0}), BBOX),
    ("box_zero_size", bbox([5, 5, 0, 4]), BBOX),
    ("box_outside", bbox([64, 5, 9, 4]), BBOX),
    ("box_outside", bbox([-9, 5, 9, 4]), BBOX),
    ("box_vanishes", bbox([5, 5, 1e-4, 4]), BBOX),
    ("box_vanishes", bbox([-9, 5, 9.0001, 4]), BBOX),
    ("box_partly_outside", bbox([60, 5, 9, 4]), BBOX),
    ("box_partly_outside", bbox([5, -1.1, 9, 4]), BBOX),
    # Boxes 1 and 7 are of one image, and of one category.
    ("box_duplicate", put("annotations", 7, "bbox", [3, 3, 20, 10]), "annotations[7].bbox"),
    ("image_without_boxes", remove_boxes(12), "images[2]"),
    ("image_with_crowds_only", mark_crowds(12), "images[2]"),
    ("file_name_duplicate", put("images", 3, "file_name", "1.jpg"), "images[3].file_name"),
]


def changed(*changes: Change) -> Content:
    content = small_content()
    for change in changes:
        change(content)
    return content


def verify_annotations(folder: Path, content: object) -> tuple[int, Content]:
    config, *_ = write_splits(folder, content)
    return verify(config, no_images=True)


def test_clean_data_have_no_findings(tmp_path: Path) -> None:
    config, train, validation = write_splits(tmp_path, small_content())
    code, report = verify(config)
    assert code == 0 and counts(report) == counts(report, "validation") == {}
    assert not report["stops_training"]
    assert report["splits"]["train"]["images_checked"] == IMAGES
    assert train_on(train, validation) == 4 * IMAGES


@pytest.mark.parametrize(("kind", "change", "place"), STOPPING + HARMLESS)
def test_training_stops_at_the_faults_that_stop_it(
    tmp_path: Path, kind: str, change: Change, place: str
) -> None:
    code, report = verify_annotations(tmp_path, changed(change))
    assert entries(report, kind) == [place] and counts(report)[kind] == 1
    stops = (kind, change, place) in STOPPING
    assert report["stops_training"] == bool(code) == stops
    if stops:
        message = error_message(train_on, *both_splits(tmp_path))
        assert MESSAGES.get(kind, "labels.json: ").format(place) in message
        return
    boxes = train_on(*both_splits(tmp_path))
    if kind.startswith("box"):  # left out, clipped, or learned twice
        used = ("box_partly_outside", "box_duplicate", "box_of_polygon", "box_rotated")
        assert boxes == 4 * IMAGES - (kind not in used)
    assert boxes > 0 and counts(report) == {kind: 1}


def test_every_kind_of_annotation_finding_is_tested() -> None:
    elsewhere = ("image_", "categor", "class_", "file_", "boxes_of_corners")
    tested = {kind for kind, _, _ in STOPPING + HARMLESS}
    assert {name for name in KINDS if not name.startswith(elsewhere)} <= tested


def test_columns_of_an_index_are_checked(tmp_path: Path) -> None:
    """Only another program can write such an index."""
    _, train, validation = write_splits(tmp_path)
    read = read_annotations(train.annotations)
    boxes, categories, ids = read.boxes.copy(), read.box_category_ids.copy(), read.box_ids.copy()
    boxes[1, 2] = NAN
    boxes[2, 2] = boxes[2, 0] - 3
    boxes[3, 3] = boxes[3, 1]
    boxes[4] += 1000
    categories[5] = 77
    ids[6] = ids[7]
    folder = tmp_path / "made.index"
    spoiled = replace(read, boxes=boxes, box_category_ids=categories, box_ids=ids)
    write_index(folder, spoiled, made_from="a test")
    config = write_config(tmp_path, train._replace(annotations=folder), validation)
    code, report = verify(config, no_images=True, write_clean=tmp_path / "clean")
    assert code == 1
    assert {each["name"]: each["places"][0]["entry"] for each in train_findings(report)} == {
        "box_not_finite": "boxes[1]",
        "box_negative_side": "boxes[2]",
        "box_zero_size": "boxes[3]",
        "box_outside": "boxes[4]",
        "category_id_unknown": "boxes[5].category_id",
        "annotation_id_duplicate": "boxes[7].id",
    }
    clean = train._replace(annotations=tmp_path / "clean" / "train.index")
    code, report = verify(write_config(tmp_path, clean, validation), no_images=True)
    assert code == 0 and report["splits"]["train"]["boxes"] == 2 * IMAGES - 6
    (folder / "boxes.npy").unlink()
    code, report = verify(write_config(tmp_path, train._replace(annotations=folder), validation))
    assert code == 1 and counts(report) == {"annotations_unreadable": 1}


def train_findings(report: Content) -> list[Content]:
    findings: list[Content] = report["splits"]["train"]["findings"]
    return findings


FAULTS = {"bbox": [1], "area": -1, "iscrowd": "no", "image_id": 1.5}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (box([0, 0, 64, 48], 1), {}),
        ([attributes({"IsGroupOf": None})], {}),
        (box([-1, -1, 66, 50], 1), {}),  # within rounding of the border
        (box([63.9, 47.9, 0.1, 0.1], 1), {}),
        ([put("annotations", n, "id", DELETE) for n in range(2 * IMAGES)], {}),
        # Boxes of an unreadable image or category do not count as boxes of an unknown one.
        (
            [put("images", 2, "width", -5), put("categories", 1, "name", 7), *box([NAN] * 4, 3, 9)],
            {"image_size_invalid": 1, "category_name_invalid": 1, "box_not_finite": 2},
        ),
        (
            [put("annotations", 4, field, value) for field, value in FAULTS.items()],
            {
                "id_invalid": 1,
                "box_not_four_numbers": 1,
                "area_invalid": 1,
                "crowd_flag_invalid": 1,
            },
        ),
    ],
)
def test_all_faults_are_counted(
    tmp_path: Path, changes: list[Change], expected: dict[str, int]
) -> None:
    code, report = verify_annotations(tmp_path, changed(*changes))
    assert counts(report) == expected and counts(report, "validation") == {}
    assert code == bool(expected)


def test_equal_boxes_of_other_images_and_classes_are_no_duplicates(tmp_path: Path) -> None:
    same = [9, 9, 12.5, 8]
    equal = [put("annotations", n, "bbox", same) for n in (0, 1, 2, 6, 7)]
    other_class = put("annotations", 6, "category_id", 5)
    _, report = verify_annotations(tmp_path, changed(*equal, other_class))
    assert entries(report, "box_duplicate") == ["annotations[7].bbox"]
    # Python's hashes of -1 and -2 are equal.
    nearly = [put("annotations", n, "bbox", [x, 3, 19 - x, 10]) for n, x in ((1, -1), (7, -2))]
    _, report = verify_annotations(tmp_path / "other", changed(*nearly))
    assert entries(report, "box_duplicate") == []


@pytest.mark.parametrize(
    ("bbox", "corners"),
    [
        ([20, 15, 50, 40], 1),  # leaves 64×48 as x, y, width and height
        ([2, 3, 20, 10], 0),
        ([50, 30, 20, 20], 0),  # is no box as two corners
    ],
)
def test_boxes_of_two_corners_are_named(tmp_path: Path, bbox: list[int], corners: int) -> None:
    changes = box(bbox, *range(2 * IMAGES))
    _, report = verify_annotations(tmp_path, changed(*changes))
    assert counts(report).get("boxes_of_corners", 0) == corners
    # One that is no box as two corners shows that the others leave their images.
    (tmp_path / "one").mkdir()
    _, report = verify_annotations(tmp_path / "one", changed(*changes, *box([30, 3, 20, 10], 0)))
    assert counts(report).get("boxes_of_corners", 0) == 0


def test_truncated_file_keeps_earlier_findings(tmp_path: Path) -> None:
    text = json.dumps(changed(put("images", 1, "width", -1)))
    code, report = verify_annotations(tmp_path, text[: text.index('"annotations"') + 40])
    assert code == 1 and counts(report) == {"annotations_unreadable": 1, "image_size_invalid": 1}
    assert report["splits"]["train"]["images"] is None
    assert counts(report, "validation") == {}


def test_faults_in_different_parts_of_a_list_have_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.json_lists, "ENTRIES_AT_ONCE", 100)
    content = small_content()
    content["annotations"] = [dict(content["annotations"][0], id=n) for n in range(350)]
    negative, flat = [3, 99, 100, 349], [201, 345]
    for change in box([1, 2, 3, -4], *negative) + box([1, 2, 0, 4], *flat):
        change(content)
    _, report = verify_annotations(tmp_path, content)
    assert entries(report, "box_negative_side") == [f"annotations[{n}].bbox" for n in negative]
    assert entries(report, "box_zero_size") == [f"annotations[{n}].bbox" for n in flat]
    assert report["splits"]["train"]["boxes"] == 350 - len(negative)


@pytest.mark.parametrize("others", [[], [put("annotations", 7, "id", DELETE)]])
def test_places_are_in_the_order_of_the_file(
    tmp_path: Path, others: list[Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annotations, "BOXES_AT_ONCE", 5)
    _, report = verify_annotations(tmp_path, changed(*others, *box([1, 2, 0, 4], 1, 7, 11)))
    assert entries(report, "box_zero_size") == [f"annotations[{n}].bbox" for n in (1, 7, 11)]


def test_number_of_places_is_limited(tmp_path: Path) -> None:
    content = small_content()
    boxes = [dict(content["annotations"][0], id=n, bbox=[1, 2, 3, -4]) for n in range(1_500)]
    _, report = verify_annotations(tmp_path, content | {"annotations": boxes})
    [finding] = [each for each in train_findings(report) if each["name"] == "box_negative_side"]
    assert finding["count"] == 1_500 and len(finding["places"]) == 1_000
    assert finding["places_left_out"] == 500


def test_severity_of_images_without_boxes(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path, changed(remove_boxes(12)))
    for setting, severity in (("skip", "mended"), ("train", "note")):
        _, report = verify(config, f"data.images_without_boxes={setting}", no_images=True)
        assert [each["severity"] for each in train_findings(report)] == [severity]


@pytest.mark.parametrize(
    ("name", "found"), [("kind 3", 1), ("Kind  3", 1), ("KIND3 ", 1), ("kind 4", 0)]
)
def test_names_that_differ_only_in_case_or_blanks_are_found(
    tmp_path: Path, name: str, found: int
) -> None:
    _, report = verify_annotations(tmp_path, changed(put("categories", 2, "name", name)))
    assert entries(report, "category_name_similar") == ["categories[2].name"] * found


THREE = [{"id": i, "name": f"kind {i}"} for i in (3, 5, 9)]


@pytest.mark.parametrize(
    ("class_indices", "num_classes", "misfits"),
    [
        ("contiguous", None, 0),
        ("contiguous", 3, 0),
        ("contiguous", 4, 1),
        ("category_id", None, 0),
        ("category_id", 10, 0),
        ("category_id", 9, 1),
        ("category_id", 4, 2),
    ],
)
def test_categories_must_fit_the_model(
    tmp_path: Path, class_indices: str, num_classes: int | None, misfits: int
) -> None:
    config, train, validation = write_splits(tmp_path, class_indices=class_indices)
    code, report = verify(config, f"model.num_classes={num_classes or 'null'}", no_images=True)
    assert code == bool(misfits)
    assert counts(report) == ({"categories_do_not_fit": misfits} if misfits else {})
    with pytest.raises(InputError) if misfits else nullcontext():
        options: dict[str, Any] = {"class_indices": class_indices, "num_classes": num_classes}
        assert train_on(train, validation, **options) == 24


@pytest.mark.parametrize(
    ("categories", "differences"),
    [
        (THREE[::-1], 0),
        ([*THREE[:2], {"id": 9, "name": "another"}], 1),
        ([*THREE[:2], {"id": 9, "name": "N/A"}], 1),
        ([*THREE, {"id": 4, "name": "kind 4"}], 1),
        ([*THREE, {"id": 4, "name": "N/A"}], 1),
        (THREE[:1], 2),
    ],
)
def test_categories_of_both_splits_must_agree(
    tmp_path: Path, categories: list[dict[str, Any]], differences: int
) -> None:
    content = small_content() | {"categories": categories}
    ids = {category["id"] for category in categories}
    content["annotations"] = [e for e in content["annotations"] if e["category_id"] in ids]
    config, train, validation = write_splits(tmp_path, None, content)
    code, report = verify(config, no_images=True)
    assert counts(report, "validation").get("categories_differ", 0) == differences
    assert verify(config, no_images=True, split="validation")[0] == 0
    assert code == bool(differences)
    with pytest.raises(InputError) if differences else nullcontext():
        assert train_on(train, validation) > 0


def test_sample_of_rows_is_fixed_and_spread() -> None:
    rows = rows_to_check(100_000, 1_000)
    assert len(set(rows.tolist())) == 1_000 and rows.tolist() == sorted(rows.tolist())
    assert 45_000 < rows.mean() < 55_000
    assert rows.tolist() == rows_to_check(100_000, 1_000).tolist()
    assert rows_to_check(5, 9).tolist() == rows_to_check(5, None).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("resize", get_args(Resize))
def test_boxes_that_vanish_are_those_that_training_leaves_out(resize: Resize) -> None:
    """Wide, high and small images; boxes of sides about the smallest that is kept."""
    random = np.random.default_rng(0)
    sizes = random.choice([1, 3, 10, 333, 2000, 9999], size=(400, 2))  # width, height
    corners = random.uniform(0, 1, (400, 2)) * sizes
    boxes = np.concatenate([corners, corners + 10.0 ** random.uniform(-5, 1, (400, 2))], axis=1)
    columns = SimpleNamespace(
        boxes=boxes, image_of_box=np.arange(400), widths=sizes[:, 0], heights=sizes[:, 1]
    )
    kinds = annotations.box_kinds(columns, 0, 400, TrainingRules(image_size=64, resize=resize))  # type: ignore[arg-type]
    kept = []
    for box, (width, height) in zip(torch.from_numpy(boxes), sizes.tolist(), strict=True):
        shape = height, width
        view = whole_view(shape, size=(64, 64), resize=resize)
        kept.append(bool(view_boxes(box[None], view, original_size=shape, image_size=shape)[1]))
    assert 50 < sum(kept) < 350
    assert (~kinds["box_vanishes"]).tolist() == kept
