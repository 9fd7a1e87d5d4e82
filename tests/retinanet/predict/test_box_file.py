import json
from pathlib import Path

import pytest

from common.errors import InputError
from retinanet.predict.search import box_file


@pytest.mark.parametrize("parts", [[], [[]], [[1]], [[1, 2], [], [3]]])
def test_the_file_is_one_array_of_all_parts(parts: list[list[int]], tmp_path: Path) -> None:
    file = tmp_path / "new" / "boxes.json"
    with box_file(file) as add:
        for part in parts:
            add([{"number": one} for one in part])
        assert not file.exists()
    content = json.loads(file.read_text())
    assert [one["number"] for one in content] == [one for part in parts for one in part]
    assert [one.name for one in file.parent.iterdir()] == ["boxes.json"]


def test_an_error_in_between_leaves_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "boxes.json"
    with pytest.raises(KeyboardInterrupt), box_file(file) as add:
        add([{"number": 1}])
        raise KeyboardInterrupt
    assert json.loads(file.read_text()) == [{"number": 1}]


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    with box_file(None) as add:
        add([{"number": 1}])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/boxes\.json: cannot be written"):
        box_file(tmp_path / "file" / "boxes.json").__enter__()
