from pathlib import Path

import pytest

from common.errors import InputError
from data.annotations import Split, SplitName, find_split


def make_openimages(root: Path) -> None:
    for split in ("train", "validation"):
        (root / split / "data").mkdir(parents=True)
        (root / split / "labels").mkdir()
        (root / split / "labels" / "openimages-mlperf.json").write_text("{}")


def make_coco(root: Path) -> None:
    (root / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        (root / split).mkdir()
        (root / "annotations" / f"instances_{split}.json").write_text("{}")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_mlperfs_openimages_tree_is_found(tmp_path: Path, split: SplitName) -> None:
    make_openimages(tmp_path)
    found = find_split(tmp_path, split, annotations=None, images=None)
    folder = tmp_path / split
    assert found == Split(folder / "labels" / "openimages-mlperf.json", folder / "data")


@pytest.mark.parametrize(("split", "name"), [("train", "train2017"), ("validation", "val2017")])
def test_cocos_tree_is_found(tmp_path: Path, split: SplitName, name: str) -> None:
    make_coco(tmp_path)
    found = find_split(tmp_path, split, annotations=None, images=None)
    assert found == Split(tmp_path / "annotations" / f"instances_{name}.json", tmp_path / name)


def test_given_paths_win_over_the_tree(tmp_path: Path) -> None:
    make_coco(tmp_path / "coco")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.json").write_text("{}")
    annotations, images = tmp_path / "mine.json", tmp_path / "mine"
    both = Split(annotations, images)
    assert find_split(None, "train", annotations=annotations, images=images) == both
    assert find_split(tmp_path / "coco", "train", annotations=annotations, images=images) == both
    mixed = find_split(tmp_path / "coco", "train", annotations=annotations, images=None)
    assert mixed == Split(annotations, tmp_path / "coco" / "train2017")


def failure(
    root: Path | None,
    split: SplitName,
    *,
    annotations: Path | None = None,
    images: Path | None = None,
) -> str:
    with pytest.raises(InputError) as caught:
        find_split(root, split, annotations=annotations, images=images)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_given_names_every_field_that_would_do() -> None:
    text = failure(None, "validation")
    assert text.startswith("data.root: not set")
    assert "data.validation_annotations and data.validation_images" in text


def test_a_folder_with_neither_tree_names_what_was_looked_for(tmp_path: Path) -> None:
    text = failure(tmp_path, "train")
    assert text.startswith(f"data.root: {tmp_path} holds no train split")
    assert str(tmp_path / "train" / "labels" / "openimages-mlperf.json") in text
    assert str(tmp_path / "annotations" / "instances_train2017.json") in text
    assert "data.train_annotations" in text


def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    assert failure(tmp_path / "none", "train").startswith(f"data.root: {tmp_path / 'none'} is not")


def test_a_half_tree_names_the_missing_half(tmp_path: Path) -> None:
    make_coco(tmp_path)
    (tmp_path / "val2017").rmdir()
    text = failure(tmp_path, "validation")
    assert text.startswith(f"data.validation_images: {tmp_path / 'val2017'} does not exist")


def test_a_given_path_that_does_not_exist_names_its_field(tmp_path: Path) -> None:
    make_coco(tmp_path)
    missing = tmp_path / "none.json"
    text = failure(tmp_path, "train", annotations=missing)
    assert text.startswith(f"data.train_annotations: {missing} does not exist")
    text = failure(None, "train", annotations=missing)
    assert text.startswith("data.root: not set; set it, or data.train_images")
