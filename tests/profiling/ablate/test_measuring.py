"""Measuring in real processes, stopping half-way, and going on."""

import json
from pathlib import Path

import pytest

from common.console import make_console
from common.errors import InputError, WorkerDiedError
from profiling.ablate.definition import Ablation
from profiling.ablate.measure import Photos, begun_result, measure, measured_on
from profiling.ablate.result import Plan, Result, read_result, resolve_plan
from tests.profiling.ablate.made import ablation

COMMAND = "python -m profiling ablate run made --quick"


def planned(*, rounds: int = 3, one: Ablation | None = None) -> Plan:
    return resolve_plan("made", one or ablation(quick={"warm_up": 1}), size="quick", rounds=rounds)


def measured(plan: Plan, file: Path, *, overwrite: bool = False) -> Result:
    console = make_console(quiet=True)
    begun = begun_result(plan, file, command=COMMAND, on=measured_on(), overwrite=overwrite)
    photos = Photos(None, file.parent, console)
    return measure(plan, begun, file, photos=photos, console=console)


def test_every_round_has_a_run_of_every_variant(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = measured(planned(), file)
    assert done == read_result(file)
    assert done.is_complete and len(done.rounds) == 3
    # The warm-up was the first.
    assert done.values("slow", "runs") == done.values("quick", "runs") == [2, 3, 4]
    assert done.environment["cores"] >= 1 and done.environment["torch"]
    assert done.command == COMMAND
    assert done.began <= done.ended


def test_what_was_stopped_goes_on_with_the_rounds_that_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    variants = {"slow": {"about": ""}, "quick": {"about": "", "options": {"fails_at": 4}}}
    failing = planned(one=ablation(variants=variants, quick={"warm_up": 1}))
    with pytest.raises(WorkerDiedError, match="quick: ArithmeticError: loss nan"):
        measured(failing, file)
    kept = read_result(file)
    assert len(kept.rounds) == 2 and not kept.is_complete
    done = measured(failing, file)
    assert done.rounds[:2] == kept.rounds
    assert len(done.rounds) == 3 and done.is_complete
    assert done.began == kept.began
    # Random numbers go on too: they are not those of the first round again.
    assert done.values("slow", "seed") == [0, 0, 2]


def test_what_is_complete_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    first = measured(planned(), file)
    assert measured(planned(), file) == first
    assert len(measured(planned(rounds=4), file).rounds) == 4
    assert len(measured(planned(rounds=2), file, overwrite=True).rounds) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environment": {"torch": "1.0"}}, r"was measured with torch 1\.0, now 2"),
        ({"definition": {"warm_up": 9}}, r"was measured with another definition \(warm_up\)"),
        ({"definition": {"photos": "others"}}, r"another definition \(photos\)"),
    ],
)
def test_a_result_of_something_else_is_not_gone_on_with(
    tmp_path: Path, change: dict[str, dict[str, object]], said: str
) -> None:
    file = tmp_path / "result.json"
    measured(planned(rounds=1), file)
    content = json.loads(file.read_text())
    for field, values in change.items():
        content[field] |= values
    file.write_text(json.dumps(content))
    before = file.read_text()
    with pytest.raises(InputError, match=rf"{said}.*--overwrite"):
        measured(planned(rounds=2), file)
    assert file.read_text() == before


def test_another_commit_may_go_on(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    measured(planned(rounds=1), file)
    content = json.loads(file.read_text())
    content["environment"]["code"] = "an earlier one"
    file.write_text(json.dumps(content))
    assert len(measured(planned(rounds=2), file).rounds) == 2


def test_where_nobody_can_run_there_is_a_result_that_says_why(tmp_path: Path) -> None:
    variants = {
        "slow": {"about": "", "options": {"ranks": 10**6}},
        "quick": {"about": "", "options": {"ranks": 10**6}},
    }
    done = measured(planned(one=ablation(variants=variants)), tmp_path / "result.json")
    assert done.is_complete and not done.rounds
    assert "requires more than" in done.left_out["slow"]
