"""The file of what was measured."""

from pathlib import Path

import pytest

from launch.tune.measurements import read_measurements, write_measurements
from retinanet.errors import InputError
from tests.launch.tune.by_hand import measurements


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    write_measurements(file, measurements())
    assert read_measurements(file) == measurements()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": 1}'])
def test_another_file_is_named_with_what_to_do(content: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"other.json: is nothing that .* wrote .* another name"):
        read_measurements(file)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.json: cannot be read"):
        read_measurements(tmp_path / "none.json")
