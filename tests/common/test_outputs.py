from pathlib import Path

import pytest

from common.outputs import require_no_input, require_outside
from tests.support.commands import error_message


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An input, with other ways to name it beside it."""
    file = tmp_path / "in" / "labels.json"
    file.parent.mkdir()
    file.write_text("mine")
    (tmp_path / "linked").symlink_to(file.parent)
    (tmp_path / "link.json").symlink_to(file)
    (tmp_path / "hard.json").hardlink_to(file)
    return file


@pytest.mark.parametrize(
    "name",
    ["in/labels.json", "in/../in/labels.json", "linked/labels.json", "link.json", "hard.json"],
)
def test_output_that_is_an_input_by_any_name_is_refused(
    tmp_path: Path, source: Path, name: str
) -> None:
    output = tmp_path / name
    message = f"{output}: would replace {source}, which this command reads; set another output"
    assert error_message(require_no_input, [tmp_path / "new", output], [source]) == message


def test_other_outputs_are_accepted(tmp_path: Path, source: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("mine")
    outputs = [other, tmp_path / "new", source.parent, Path("/dev/null"), Path("a\0b")]
    require_no_input(outputs, [source, source.parent, tmp_path / "missing", Path("/dev/null")])


@pytest.mark.parametrize("name", ["in", "linked", "in/labels.json", "."])
def test_folder_around_an_input_is_not_replaced(tmp_path: Path, source: Path, name: str) -> None:
    message = error_message(require_outside, source, tmp_path / name, advice="set --out")
    assert message.endswith(f"would replace {source}, which this command reads; set --out")
    require_outside(source, tmp_path / "in" / "new", advice="")
