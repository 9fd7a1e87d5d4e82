"""What docs/stability.md promises is what the program has."""

import re

import retinanet
from common import errors
from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "stability.md").read_text(encoding="utf-8")


def test_names_of_the_python_interface() -> None:
    [sentence] = re.findall(r"^The names of `from retinanet import …`: (.*)\.$", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", sentence) == retinanet.__all__


def test_exit_statuses() -> None:
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    statuses = {name: value for name, value in vars(errors).items() if type(value) is int}
    no_statuses = {"MOST_CLASSES", "LONGEST", "END_LENGTH"}
    assert listed == {value for name, value in statuses.items() if name not in no_statuses}
