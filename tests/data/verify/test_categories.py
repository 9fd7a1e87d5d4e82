"""Categories that do not fit the model, or not the other split's."""

from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from data.verify.splits import rows_to_check
from tests.data.verify.small_set import (
    counts,
    small_content,
    train_on,
    verify,
    write_config,
    write_split,
)

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
def test_categories_that_do_not_fit_the_model(
    tmp_path: Path, class_indices: str, num_classes: int | None, misfits: int
) -> None:
    train, validation = (
        write_split(tmp_path / name, small_content()) for name in ("train", "validation")
    )
    config = write_config(tmp_path, train, validation, class_indices=class_indices)
    outputs = "null" if num_classes is None else str(num_classes)
    code, report = verify(config, f"model.num_classes={outputs}", no_images=True)
    options: dict[str, Any] = {"class_indices": class_indices, "num_classes": num_classes}
    if misfits:
        assert code == 1 and counts(report) == {"categories_do_not_fit": misfits}
        with pytest.raises(InputError):
            train_on(train, validation, **options)
    else:
        assert code == 0 and counts(report) == {}
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
def test_categories_that_differ_between_the_splits(
    tmp_path: Path, categories: list[dict[str, Any]], differences: int
) -> None:
    content = small_content() | {"categories": categories}
    ids = {one["id"] for one in categories}
    content["annotations"] = [e for e in content["annotations"] if e["category_id"] in ids]
    train = write_split(tmp_path / "train", small_content())
    validation = write_split(tmp_path / "validation", content)
    config = write_config(tmp_path, train, validation)
    code, report = verify(config, no_images=True)
    assert counts(report, "validation").get("categories_differ", 0) == differences
    code_of_one, _ = verify(config, no_images=True, split="validation")
    assert code_of_one == 0
    if differences:
        assert code == 1
        with pytest.raises(InputError):
            train_on(train, validation)
    else:
        assert code == 0 and train_on(train, validation) > 0


def test_a_sample_is_spread_and_always_the_same() -> None:
    rows = rows_to_check(100_000, 1_000)
    assert len(set(rows.tolist())) == 1_000 and rows.tolist() == sorted(rows.tolist())
    assert 45_000 < rows.mean() < 55_000
    assert rows.tolist() == rows_to_check(100_000, 1_000).tolist()
    assert rows_to_check(5, 9).tolist() == rows_to_check(5, None).tolist() == [0, 1, 2, 3, 4]
