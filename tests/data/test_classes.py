import json
from pathlib import Path

import numpy as np
import pytest

from common.errors import InputError
from data.annotations import ClassMap

IDS = np.array([90, 3, 17], dtype=np.int64)
NAMES = ("toothbrush", "car", "cat")
FILE = Path("val.json")


def test_contiguous_labels_follow_the_json_order() -> None:
    classes = ClassMap.contiguous(IDS, NAMES)
    assert classes.num_classes == 3
    assert classes.to_labels(np.array([3, 90, 3, 17])).tolist() == [1, 0, 1, 2]
    assert classes.to_category_ids(np.array([1, 0, 2])).tolist() == [3, 90, 17]
    assert classes.category_ids == (90, 3, 17)
    assert [classes.names[label] for label in range(3)] == list(NAMES)


def test_labels_by_category_id_are_the_ids() -> None:
    classes = ClassMap.by_category_id(IDS, NAMES, 91)
    assert classes.num_classes == 91
    assert classes.to_labels(IDS).tolist() == [90, 3, 17]
    assert classes.to_category_ids(np.array([17, 90])).tolist() == [17, 90]
    assert (classes.names[17], classes.names[0]) == ("cat", "N/A")
    assert classes.category_ids[12] == 12


@pytest.mark.parametrize(("ids", "culprit"), [([1, 91], "91"), ([1, -1], "-1")])
def test_a_category_id_outside_the_models_classes_is_refused(ids: list[int], culprit: str) -> None:
    with pytest.raises(InputError, match=rf"^a\.json: categories\[1\]\.id: {culprit} .*0 to 90"):
        ClassMap.by_category_id(np.array(ids), ("a", "b"), 91, source="a.json")


@pytest.mark.parametrize(
    "classes", [ClassMap.contiguous(IDS, NAMES), ClassMap.by_category_id(IDS, NAMES, 91)]
)
def test_round_trips(classes: ClassMap) -> None:
    assert ClassMap.from_json(json.loads(json.dumps(classes.to_json()))) == classes
    labels = np.arange(classes.num_classes)
    assert classes.to_labels(classes.to_category_ids(labels)).tolist() == labels.tolist()


def test_no_ids_give_no_labels() -> None:
    labels = ClassMap.contiguous(IDS, NAMES).to_labels(np.zeros(0, dtype=np.int64))
    assert labels.shape == (0,) and labels.dtype == np.int64


@pytest.mark.parametrize("unknown", [-5, 4, 1000])
def test_an_unknown_category_id_is_named(unknown: int) -> None:
    with pytest.raises(InputError, match=f"category id {unknown} is none"):
        ClassMap.contiguous(IDS, NAMES).to_labels(np.array([3, unknown]))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"category_ids": [1, 2], "names": ["a"]},
        {"category_ids": [1, 1], "names": ["a", "b"]},
        {"category_ids": ["1"], "names": ["a"]},
        {"category_ids": [1], "names": [None]},
        {"category_ids": [[1]], "names": ["a"]},
    ],
)
def test_a_damaged_dict_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"^classes: expected"):
        ClassMap.from_json(content)


@pytest.mark.parametrize(
    "classes", [ClassMap.contiguous(IDS, NAMES), ClassMap.by_category_id(IDS, NAMES, 91)]
)
def test_validation_categories_are_compared_by_id_in_any_order(classes: ClassMap) -> None:
    classes.check_categories(IDS[::-1], NAMES[::-1], file=FILE)
    with pytest.raises(InputError, match=r"categories\[1\]: id 3 is 'bus' here and 'car' in"):
        classes.check_categories(IDS, ("toothbrush", "bus", "dog"), file=FILE)
    with pytest.raises(InputError, match=r"^val\.json: categories\[3\]: id 5 is 'x' .* unknown"):
        classes.check_categories(np.array([90, 3, 17, 5]), (*NAMES, "x"), file=FILE)
    with pytest.raises(InputError, match=r"id 17 \('cat'\) of the training set is missing"):
        classes.check_categories(IDS[:2], NAMES[:2], file=FILE)
