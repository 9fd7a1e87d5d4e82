import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from profiling.ablate.result import ComparedCalls, read_result, write_result
from tests.profiling.ablate.made import result, run

MADE = result({"slow": [run(3.0, loss=0.1), run(3.5, loss=0.2)], "quick": [run(2.0), run(2.5)]})


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "some" / "result.json"
    calls: ComparedCalls = {
        "first": "slow",
        "second": "quick",
        "logs": ["slow.log", "quick.log"],
        "kinds": [
            {
                "kind": "convolution forward",
                "first_calls": 90.0,
                "second_calls": 80.0,
                "first_ms": 2.5,
                "second_ms": 2.0,
            }
        ],
        "only_one": [],
    }
    whole = replace(MADE, busy_cores=(0.1, 0.2), calls=calls, facts={"slow": {"a": 1}})
    write_result(file, whole)
    assert read_result(file) == whole


def test_values_come_by_round_and_only_where_they_were_measured() -> None:
    assert MADE.values("slow", "seconds") == [3.0, 3.5]
    assert MADE.values("slow", "loss") == [0.1, 0.2]
    assert MADE.values("quick", "loss") == []
    assert MADE.values("nobody", "seconds") == []
    assert MADE.values("quick", "peak_rss_mb") == [200.0, 200.0]


def test_a_result_is_complete_with_its_last_round_or_where_nobody_can_run() -> None:
    assert MADE.is_complete
    assert not replace(MADE, rounds_wanted=3).is_complete
    nobody = result({}, rounds_wanted=5)
    assert nobody.is_complete and not nobody.rounds


@pytest.mark.parametrize("damage", ["no JSON", "[]", "{}", "a field less", "a run less", "a word"])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "result.json"
    write_result(file, MADE)
    content = json.loads(file.read_text())
    if damage == "a field less":
        del content["environment"]
    elif damage == "a run less":
        del content["rounds"][0]["slow"]["seconds"]
    elif damage == "a word":
        content["definition"]["variants"]["slow"]["allocator"] = 7
    file.write_text(json.dumps(content) if damage.startswith("a ") else damage)
    with pytest.raises(InputError, match=r"result\.json: is not a result of .*; move it"):
        read_result(file)
