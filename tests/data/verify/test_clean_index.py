"""`--write-clean`: the remaining entries are those that training can use."""

from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import InputError
from data.coco_json import read_annotations
from data.index import open_index
from tests.data.samples import assert_same_annotations
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
    assert verify(config, write_clean=folder)[0] == 1
    printed = capsys.readouterr().out
    # One image is there twice, one cannot be read, 12 lost its boxes and 14 is damaged.
    assert f"{folder}/train.index: 4 of 8 images and 6 of 15 boxes" in printed
    assert f"{folder}/validation.index: 5 of 6 images and 10 of 12 boxes" in printed
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
    validation = validation._replace(annotations=folder / "validation.index")
    assert train_on(train._replace(annotations=folder / "train.index"), validation) == 6 + 10


def test_clean_index_of_good_data_equals_the_data(tmp_path: Path) -> None:
    config, train, validation = write_splits(tmp_path)
    assert verify(config, write_clean=tmp_path / "clean")[0] == 0
    for name, split in (("train", train), ("validation", validation)):
        clean = open_index(tmp_path / "clean" / f"{name}.index")
        assert_same_annotations(clean, read_annotations(split.annotations))


def test_index_can_be_cleaned_again(tmp_path: Path) -> None:
    config, *splits = write_splits(tmp_path)
    verify(config, write_clean=tmp_path / "first")
    (splits[0].images / "2.jpg").unlink()
    first = f"data.train_annotations={tmp_path}/first/train.index"
    code, report = verify(config, first, write_clean=tmp_path / "second")
    assert code == 1 and counts(report) == {"image_missing": 1}
    clean = open_index(tmp_path / "second" / "train.index")
    assert clean.image_ids.tolist() == [10, 11, 13, 14, 15] and len(clean.boxes) == 10


def without_boxes_of_12(content: Content) -> None:
    """Images without boxes are valid; the configuration selects whether they are used."""
    content["annotations"] = [e for e in content["annotations"] if e["image_id"] != 12]


def without_valid_boxes_of_12_and_13(content: Content) -> None:
    """Else they would teach that nothing is in them: also if the box could not even be read."""
    for place, bbox in ((2, [1, 2, 0, 4]), (8, "none"), (3, [float("nan")] * 4), (9, [1])):
        content["annotations"][place]["bbox"] = bbox


def two_images_of_one_id(content: Content) -> None:
    content["images"][4]["id"] = 11


@pytest.mark.parametrize(
    ("change", "remaining"),
    [
        (without_boxes_of_12, [10, 11, 12, 13, 14, 15]),
        (without_valid_boxes_of_12_and_13, [10, 11, 14, 15]),
        (two_images_of_one_id, [10, 12, 13, 15]),
    ],
)
def test_images_of_the_clean_index(
    tmp_path: Path, change: Callable[[Content], None], remaining: list[int]
) -> None:
    content = small_content()
    change(content)
    config, *_ = write_splits(tmp_path, content, content)
    verify(config, write_clean=tmp_path / "clean")
    assert open_index(tmp_path / "clean" / "train.index").image_ids.tolist() == remaining


KIND = {"id": 3, "name": "kind 3"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"categories": [KIND] * 3}, "faulty categories"),
        ({"categories": [{"id": 3, "name": ""}]}, "cannot be read"),
        ({"categories": [KIND, {"id": 5}]}, "faulty categories"),
        ({"images": [{"id": 3}]}, "cannot be read"),
        (None, "no image would remain"),
    ],
)
def test_clean_index_that_cannot_be_made(
    tmp_path: Path, change: Content | None, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, _, validation = write_splits(tmp_path, None, small_content() | (change or {}))
    for file in [] if change else validation.images.iterdir():
        file.unlink()
    code, _ = verify(config, write_clean=tmp_path / "clean")
    assert code == 1 and not (tmp_path / "clean").exists()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("clean index not written: validation: ") and reason in last


def test_existing_index_is_not_replaced(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path)
    clean = tmp_path / "clean"
    (clean / "validation.index").mkdir(parents=True)
    with pytest.raises(InputError, match=r"validation\.index: exists"):
        verify(config, write_clean=clean)
    assert not (clean / "train.index").exists()
    assert verify(config, write_clean=clean, split="train")[0] == 0
    assert len(open_index(clean / "train.index")) == IMAGES


def test_clean_index_of_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, *_ = write_splits(tmp_path)
    with pytest.raises(InputError, match=r"--write-clean: .* --sample"):
        verify(config, write_clean=tmp_path / "clean", sample=2)
    verify(config, write_clean=tmp_path / "clean", no_images=True)
    assert "not all images were checked" in capsys.readouterr().out
