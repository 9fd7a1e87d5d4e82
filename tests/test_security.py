"""The statements of SECURITY.md about this code."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
CODE = [
    file
    for folder in ("common", "retinanet", "data", "launch", "profiling")
    for file in sorted((REPOSITORY / folder).rglob("*.py"))
]
HOLED = r"linalg\.lu|torch\.rot90|unpack_sequence|jit\.script|jit\.load|lstm_cell"


def test_pillow_is_at_least_version_13() -> None:
    pins = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8")
    [version] = re.findall(r"^pillow==(\d+)\.", pins, re.MULTILINE)
    assert int(version) >= 13


def test_no_function_with_a_known_vulnerability_is_called() -> None:
    calls = {file.name: re.findall(HOLED, file.read_text(encoding="utf-8")) for file in CODE}
    assert len(calls) > 100
    assert {name: names for name, names in calls.items() if names} == {}


@pytest.mark.parametrize(("call", "file"), [("torch.load(", "build.py")])
def test_pickles_are_read_in_one_place(call: str, file: str) -> None:
    assert {item.name for item in CODE if call in item.read_text(encoding="utf-8")} == {file}
