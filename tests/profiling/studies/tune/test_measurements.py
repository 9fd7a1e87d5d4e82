"""The file of what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.files import read_json_object
from profiling.bench.job import RankSteps
from profiling.studies.tune.measurements import (
    JobsOfShape,
    PartialMeasurement,
    read_measurements,
    require_same,
    write_measurements,
)
from profiling.studies.tune.model import Shape
from tests.profiling.studies.tune.by_hand import measurements

ONE = Shape(ranks=1, threads=2, batch_size=4)
STEPS = RankSteps(
    rank=0,
    host="here",
    seconds=[1.0, 1.1],
    data_seconds=[0.0, 0.0],
    forward_seconds=[0.4, 0.5],
    exchange_seconds=[0.0, 0.0],
    held_back_seconds=[],
    images=4,
    way="none",
    notes=[],
)
BEGUN = PartialMeasurement(
    command="python -m launch tune",
    environment={"cpu": "a processor", "torch": "2.8.0"},
    data="openimages",
    overrides=("data.image_size=64",),
    question={"image_size": 64},
    measured=(ONE,),
    shapes=(ONE,),
    jobs=(JobsOfShape(shape=ONE, jobs=((STEPS,),)),),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    write_measurements(file, measurements())
    assert read_measurements(file) == measurements()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": 1}'])
def test_another_file_is_named_with_what_to_do(content: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"other.json: was not written by .* another name"):
        read_measurements(file)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.json: cannot be read"):
        read_measurements(tmp_path / "none.json")


def test_unfinished_measurement_is_read_as_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    write_measurements(file, BEGUN)
    assert read_measurements(file) == BEGUN


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"environment": {"cpu": "another", "torch": "2.8.0"}},
            "started with cpu a processor, now",
        ),
        ({"environment": {"cpu": "a processor", "torch": "3"}}, "torch 2.8.0, now it is 3"),
        ({"question": {"image_size": 96}}, "started with image_size 64, now it is 96"),
    ],
)
def test_only_the_same_machine_versions_and_training_go_on(
    changes: dict[str, Any], words: str
) -> None:
    require_same(Path("here.json"), BEGUN, BEGUN)
    with pytest.raises(InputError, match=f"^here.json: the measurement was .*{words}"):
        require_same(Path("here.json"), BEGUN, replace(BEGUN, **changes))


def test_another_kernel_may_go_on() -> None:
    there = replace(BEGUN, environment={**BEGUN.environment, "kernel": "6.1"})
    require_same(Path("here.json"), there, BEGUN)


def test_json_that_is_nested_without_end_is_refused_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for text in ("[" * 100_000, '{"unfinished": true, "shapes": ' + "[" * 100_000):
        file.write_text(text)
        with pytest.raises(InputError, match=r"plan\.json"):
            read_measurements(file)
        with pytest.raises(InputError, match=r"plan\.json"):
            read_json_object(file, advice="")
