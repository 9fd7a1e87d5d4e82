from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from common.errors import InputError
from data.annotations import Annotations, GrowingColumns, TextColumn
from data.coco_json import read_annotations
from data.index import open_index, write_index
from tests.data.coco_files import random_content, write_json


def annotations_of(tmp_path: Path, *, images: int = 30, boxes: int = 200) -> Annotations:
    content = random_content(images=images, boxes=boxes)
    return read_annotations(write_json(tmp_path / "labels.json", content))


def assert_same(found: Annotations, expected: Annotations) -> None:
    for field in fields(Annotations):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype and a.shape == b.shape, field.name
        assert np.array_equal(np.asarray(a), np.asarray(b)), field.name


def test_an_index_gives_back_every_column(tmp_path: Path) -> None:
    annotations = annotations_of(tmp_path)
    write_index(tmp_path / "index", annotations, made_from="labels.json")
    assert_same(open_index(tmp_path / "index"), annotations)


def test_an_index_without_boxes(tmp_path: Path) -> None:
    annotations = annotations_of(tmp_path, boxes=0)
    write_index(tmp_path / "index", annotations, made_from="labels.json")
    found = open_index(tmp_path / "index")
    assert_same(found, annotations)
    assert found.images_with_objects().tolist() == []


def test_columns_are_mapped_and_cannot_be_written(tmp_path: Path) -> None:
    write_index(tmp_path / "index", annotations_of(tmp_path), made_from="labels.json")
    boxes = open_index(tmp_path / "index").boxes
    assert isinstance(boxes.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        boxes[0] = 0


def test_images_with_objects_matches_a_plain_loop(tmp_path: Path) -> None:
    annotations = annotations_of(tmp_path, images=300, boxes=400)
    expected = [
        row
        for row in range(len(annotations))
        if not all(annotations.box_is_crowd[annotations.boxes_of(row)].tolist())
    ]
    assert annotations.images_with_objects().tolist() == expected
    assert 0 < len(expected) < 300


@pytest.mark.parametrize("name", ["boxes.npy", "file_names.npy", "image_ids.npy"])
def test_a_file_cut_short_is_told_from_a_whole_one(tmp_path: Path, name: str) -> None:
    write_index(tmp_path / "index", annotations_of(tmp_path), made_from="labels.json")
    whole = (tmp_path / "index" / name).read_bytes()
    (tmp_path / "index" / name).write_bytes(whole[:-8])
    with pytest.raises(InputError, match=r"index: a damaged index \(.+\); remove the folder"):
        open_index(tmp_path / "index")


def test_a_file_of_another_index_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path / "index", annotations_of(tmp_path), made_from="labels.json")
    np.save(tmp_path / "index" / "widths.npy", np.ones(7, dtype=np.int32))
    with pytest.raises(InputError, match=r"widths has 7 rows in place of 30"):
        open_index(tmp_path / "index")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_index(tmp_path / "index", annotations_of(tmp_path), made_from="labels.json")
    (tmp_path / "index" / "box_areas.npy").unlink()
    with pytest.raises(InputError, match=r"a damaged index .*box_areas\.npy"):
        open_index(tmp_path / "index")


def test_an_index_of_another_format_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path / "index", annotations_of(tmp_path), made_from="labels.json")
    description = tmp_path / "index" / "index.json"
    description.write_text(description.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(InputError, match="an index of format 99, this program reads 1"):
        open_index(tmp_path / "index")


def test_an_index_is_not_written_over_another(tmp_path: Path) -> None:
    annotations = annotations_of(tmp_path)
    write_index(tmp_path / "index", annotations, made_from="labels.json")
    with pytest.raises(OSError, match="not empty"):
        write_index(tmp_path / "index", annotations, made_from="other.json")
    assert_same(open_index(tmp_path / "index"), annotations)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "labels.json"]


def test_texts_of_any_script_and_length(tmp_path: Path) -> None:
    texts = ["", "a.jpg", "fotó/ñ.jpg", "日本.png", "\ud800 lone surrogate", "x" * 5000]
    column = TextColumn.of(texts)
    assert list(column) == texts and len(column) == len(texts)
    assert column[-1] == texts[-1] and column[1:3] == texts[1:3]
    assert list(TextColumn.of([])) == []
    growing = GrowingColumns()
    for part in ([], texts, [], texts):
        growing.extend({"names": TextColumn.of(part)})
    assert list(growing.finish()["names"]) == texts + texts
    with pytest.raises(IndexError):
        column[len(texts)]
