"""`--write-clean`: the remaining entries are those that training can use."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import InputError
from data.annotations import Split
from data.coco_json import read_annotations
from data.index import open_index
from tests.data.verify.small_set import (
    IMAGES,
    Content,
    counts,
    small_content,
    train_on,
    verify,
    write_splits,
)


def spoiled_content() -> Content:
    """Return content in which only the boxes of images 10 and 16 are valid."""
    content = small_content()
    boxes = content["annotations"]
    boxes[1]["bbox"] = [1, float("nan"), 3, 4]  # image 11 keeps its second box, annotation 7
    boxes[2]["bbox"] = boxes[8]["bbox"] = [5, 5, 0, 4]  # image 12 loses all of its boxes
    boxes[3]["category_id"] = 77  # image 13 keeps annotation 9
    boxes[5]["image_id"] = 99  # image 15 keeps annotation 11
    boxes.append(dict(boxes[0], id=200, bbox=[500, 5, 9, 4]))
    boxes.append(dict(boxes[0]))  # annotation 0 again
    boxes.append(dict(boxes[0], id=201, bbox=[60, 5, 9, 4]))  # clipped by training, so it stays
    content["images"].append(dict(content["images"][0], id=17, file_name="../0.jpg"))
    content["images"].append(dict(content["images"][0]))  # image 10 again
    return content


def test_clean_index_is_verified_and_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, train, validation = write_splits(tmp_path, spoiled_content())
    (train.images / "4.jpg").write_bytes(b"no image")
    (validation.images / "0.jpg").unlink()
    folder = tmp_path / "clean"
    code, _ = verify(config, clean_folder=folder)
    assert code == 1
    printed = capsys.readouterr().out
    # One image is there twice, one cannot be read, 12 lost its boxes and 14 is damaged.
    assert f"{folder}/train.index: 4 of 8 images and 6 of 15 boxes remain" in printed
    assert f"{folder}/validation.index: 5 of 6 images and 10 of 12 boxes remain" in printed
    fields = [word for word in printed.splitlines()[-1].split() if word.startswith("data.")]
    assert fields == [
        f"data.train_annotations={folder}/train.index",
        f"data.train_images={train.images}",
        f"data.validation_annotations={folder}/validation.index",
        f"data.validation_images={validation.images}",
    ]
    code, report = verify(config, *fields)
    assert code == 0 and not report["stops_training"]
    assert counts(report) == {"box_partly_outside": 1, "file_unused": 2}
    clean = open_index(folder / "train.index")
    assert clean.image_ids.tolist() == [10, 11, 13, 15]
    assert list(clean.file_names) == ["0.jpg", "1.jpg", "3.jpg", "5.jpg"]
    assert clean.box_ids.tolist() == [100, 106, 201, 107, 109, 111]
    assert clean.box_offsets.tolist() == [0, 3, 4, 5, 6]
    splits = (
        Split(folder / "train.index", train.images),
        Split(folder / "validation.index", validation.images),
    )
    assert train_on(*splits) == 6 + 10


def test_clean_index_of_good_data_equals_the_data(tmp_path: Path) -> None:
    config, train, validation = write_splits(tmp_path)
    code, _ = verify(config, clean_folder=tmp_path / "clean")
    assert code == 0
    assert_equal(tmp_path / "clean" / "train.index", train.annotations)
    assert_equal(tmp_path / "clean" / "validation.index", validation.annotations)


def assert_equal(index: Path, labels: Path) -> None:
    clean, read = vars(open_index(index)), vars(read_annotations(labels))
    for name, column in read.items():
        if isinstance(column, np.ndarray):
            assert column.tolist() == clean[name].tolist() and column.dtype == clean[name].dtype
        else:
            assert list(column) == list(clean[name])


def test_index_can_be_cleaned_again(tmp_path: Path) -> None:
    config, *splits = write_splits(tmp_path)
    verify(config, clean_folder=tmp_path / "first")
    (splits[0].images / "2.jpg").unlink()
    first = f"data.train_annotations={tmp_path}/first/train.index"
    code, report = verify(config, first, clean_folder=tmp_path / "second")
    assert code == 1 and counts(report) == {"image_missing": 1}
    clean = open_index(tmp_path / "second" / "train.index")
    assert clean.image_ids.tolist() == [10, 11, 13, 14, 15] and len(clean.boxes) == 10


def test_images_without_boxes_are_kept(tmp_path: Path) -> None:
    """Images without boxes are valid; the configuration selects whether they are used."""
    content = small_content()
    content["annotations"] = [e for e in content["annotations"] if e["image_id"] != 12]
    config, *_ = write_splits(tmp_path, content, content)
    verify(config, clean_folder=tmp_path / "clean")
    assert len(open_index(tmp_path / "clean" / "train.index")) == IMAGES


def test_image_is_removed_with_its_last_box(tmp_path: Path) -> None:
    """An image whose boxes are all invalid would be a false negative example."""
    content = small_content()
    content["annotations"][2]["bbox"] = [1, 2, 0, 4]
    content["annotations"][8]["bbox"] = "none"
    for place in (3, 9):
        content["annotations"][place]["bbox"] = [1, 2, 3, float("nan")]
    config, *_ = write_splits(tmp_path, content, content)
    verify(config, clean_folder=tmp_path / "clean")
    clean = open_index(tmp_path / "clean" / "train.index")
    assert clean.image_ids.tolist() == [10, 11, 14, 15]


def test_different_images_of_one_id_both_go(tmp_path: Path) -> None:
    content = small_content()
    content["images"][4]["id"] = 11
    config, *_ = write_splits(tmp_path, content, content)
    verify(config, clean_folder=tmp_path / "clean")
    clean = open_index(tmp_path / "clean" / "train.index")
    assert clean.image_ids.tolist() == [10, 12, 13, 15]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"categories": [{"id": 3, "name": "kind 3"}] * 3}, "faulty categories"),
        ({"categories": [{"id": 3, "name": ""}]}, "the annotations cannot be read"),
        ({"categories": [{"id": 3, "name": "kind 3"}, {"id": 5}]}, "faulty categories"),
        ({"images": [{"id": 3}]}, "the annotations cannot be read"),
    ],
)
def test_clean_index_that_cannot_be_made(
    tmp_path: Path, change: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, *_ = write_splits(tmp_path, None, small_content() | change)
    code, _ = verify(config, clean_folder=tmp_path / "clean")
    assert code == 1 and not (tmp_path / "clean").exists()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("clean index not written: validation: ") and reason in last


def test_clean_index_without_images_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, *splits = write_splits(tmp_path)
    for n in range(IMAGES):
        (splits[0].images / f"{n}.jpg").unlink()
    code, _ = verify(config, clean_folder=tmp_path / "clean")
    assert code == 1 and not (tmp_path / "clean").exists()
    assert "clean index not written: train: no image would remain" in capsys.readouterr().out


def test_existing_index_is_not_replaced(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path)
    (tmp_path / "clean" / "validation.index").mkdir(parents=True)
    with pytest.raises(InputError, match=r"validation\.index: exists"):
        verify(config, clean_folder=tmp_path / "clean")
    assert not (tmp_path / "clean" / "train.index").exists()
    code, _ = verify(config, clean_folder=tmp_path / "clean", split="train")
    assert code == 0 and len(open_index(tmp_path / "clean" / "train.index")) == IMAGES


def test_sample_cannot_be_cleaned(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path)
    with pytest.raises(InputError, match="--write-clean: not allowed with --sample"):
        verify(config, clean_folder=tmp_path / "clean", sample=2)


def test_clean_index_without_image_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, *_ = write_splits(tmp_path)
    verify(config, clean_folder=tmp_path / "clean", no_images=True)
    assert "not all images were checked" in capsys.readouterr().out
