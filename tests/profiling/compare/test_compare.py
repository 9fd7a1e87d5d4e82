"""Two logs side by side."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from common.cli import run_command
from common.errors import InputError
from profiling.__main__ import main
from profiling.compare import (
    OPERATORS,
    Comparison,
    Side,
    compare,
    kinds_of,
    parse_condition,
    print_comparison,
    ratio_of,
)
from profiling.onednn_log.log import log_files, read_logs
from profiling.onednn_log.parse import Mark, mark_line
from tests.profiling.onednn_log.lines import SPELLINGS
from tests.profiling.onednn_log.logs import shared_logs

FORWARD = SPELLINGS["3.12"]
BACKWARD = FORWARD.replace("forward_training", "backward_data")
REORDER = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0 "
    "dst:f32::blocked:ba::f0,,,8x8,1"
)


def written(file: Path, *lines: str) -> Path:
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return file


def matched(first: Path, second: Path, *, with_types: bool = True) -> Comparison:
    sides = [Side(name, read_logs([file])) for name, file in (("a", first), ("b", second))]
    return compare(*sides, with_types=with_types)


@pytest.fixture
def frozen(tmp_path: Path) -> tuple[Path, Path]:
    """The left computes gradients that the right, whose layer is frozen, does not."""
    ours = written(tmp_path / "ours.log", FORWARD, FORWARD, BACKWARD, BACKWARD, REORDER)
    reference = written(tmp_path / "reference.log", FORWARD, FORWARD, REORDER, REORDER)
    return ours, reference


def test_what_only_one_side_calls_is_on_top(frozen: tuple[Path, Path]) -> None:
    comparison = matched(*frozen)
    first, second = comparison.only_one
    # one reorder at 1 ms costs more than two gradients at 0.25 ms
    assert (first.key.kind, first.extra_calls, first.extra_ms) == ("reorder", -1, 1)
    assert (second.key.direction, second.extra_calls, second.extra_ms) == (
        "backward data",
        2,
        0.5,
    )
    (same,) = comparison.both
    assert (same.key.direction, same.ratio) == ("forward", 1)


def test_kinds_add_up_to_both_logs(frozen: tuple[Path, Path]) -> None:
    kinds = kinds_of(matched(*frozen).pairs)
    assert sum(kind.first.ms for kind in kinds) == pytest.approx(2.0)
    assert sum(kind.second.ms for kind in kinds) == pytest.approx(2.5)
    assert kinds[0].name == "reorder"


def test_two_versions_that_ran_the_same_network_are_matched_call_by_call() -> None:
    logs = {file.name: file for file in shared_logs()}
    old = next(file for name, file in logs.items() if name.endswith("2.6.0-verbose1.log"))
    new = next(file for name, file in logs.items() if "3.7.1" in name)
    comparison = matched(old, new)
    assert comparison.only_one == []
    assert len(comparison.both) == 38


def test_training_and_inference_ask_the_same(tmp_path: Path) -> None:
    inference = FORWARD.replace("forward_training", "forward_inference")
    comparison = matched(
        written(tmp_path / "a.log", FORWARD), written(tmp_path / "b.log", inference)
    )
    assert comparison.only_one == []


def test_types_can_be_ignored(tmp_path: Path) -> None:
    files = (
        written(tmp_path / "a.log", FORWARD),
        written(tmp_path / "b.log", FORWARD.replace("f32", "bf16")),
    )
    assert len(matched(*files).only_one) == 2
    assert matched(*files, with_types=False).only_one == []


def test_steps_are_compared_with_steps(tmp_path: Path) -> None:
    def marked(steps: int) -> list[str]:
        lines = [REORDER]  # outside of steps
        for step in range(steps):
            begin, end = (mark_line(Mark(1.0, edge, step, None)).strip() for edge in (True, False))
            lines += [begin, FORWARD, end]
        return lines

    comparison = matched(
        written(tmp_path / "a.log", *marked(2)), written(tmp_path / "b.log", *marked(5))
    )
    (pair,) = comparison.pairs
    assert (pair.first.calls, pair.second.calls, pair.second.ms) == (1, 1, 0.25)


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("total > 1.1", 0.8),
        ("calls > 1", 5 / 4),
        ("reorder < 0.6", 0.5),
        ("reorder calls <= 1", 0.5),
        ("convolution forward >= 1", 1),
        ("convolution > 1", 2),
        ("convolution backward_data > 3", float("inf")),
        ("convolution.backward_data > 3", float("inf")),
    ],
)
def test_conditions_hold_the_first_against_the_second(
    frozen: tuple[Path, Path], text: str, ratio: float
) -> None:
    comparison = matched(*frozen)
    condition = parse_condition(text)
    found = ratio_of(condition, comparison)
    assert found == pytest.approx(ratio)
    is_met = OPERATORS[condition.operator](found, condition.bound)
    assert is_met == (text != "total > 1.1")


@pytest.mark.parametrize("text", ["", "total", "total > much", "total = 1", "1 > total"])
def test_what_is_no_condition_is_told(text: str) -> None:
    with pytest.raises(InputError, match=r"--fail-if .*expected such as"):
        parse_condition(text)


def test_status_of_the_command_is_for_scripts(
    frozen: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*words: object) -> int:
        command = ["profiling", "compare", *map(str, frozen), *map(str, words)]
        monkeypatch.setattr("sys.argv", command)
        return run_command(main)

    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    assert run("--fail-if", "total > 1.1", "--out", out, "--json", numbers) == 0
    assert "passed: total > 1.1: it is 0.800" in capsys.readouterr().out
    assert run("--fail-if", "total > 1.1", "--fail-if", "calls > 1") == 4
    assert "FAILED: calls > 1: it is 1.250" in capsys.readouterr().out
    assert run("--fail-if", "pooling > 1") == 2
    assert "neither log has 'pooling'; they have total, reorder, conv" in capsys.readouterr().err
    assert run("--names", "ours") == 2
    with (out / "comparison.csv").open(encoding="utf-8") as table:
        assert [line["kind"] for line in csv.DictReader(table)][:2] == ["reorder", "convolution"]
    assert json.loads(numbers.read_text(encoding="utf-8"))["first"] == "ours"
    assert {file.name for file in out.iterdir()} == {
        "comparison.csv", "comparison.png", "comparison.svg",
    }  # fmt: skip


def test_a_folder_stands_for_the_logs_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "onednn"
    folder.mkdir()
    for rank in range(2):
        written(folder / f"rank{rank}.log", FORWARD)
    assert len(read_logs(log_files(folder)).files) == 2
    with pytest.raises(InputError, match=r"holds no \*\.log"):
        log_files(tmp_path)


def printed(first: Path, second: Path, *, names: tuple[str, str]) -> list[list[str]]:
    """The cells of all tables of a comparison, row by row."""
    sides = [
        Side(name, read_logs([file])) for name, file in zip(names, (first, second), strict=True)
    ]
    console = Console(file=io.StringIO(), width=200)
    comparison = compare(*sides)
    print_comparison(console, comparison, top=9)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [
        [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
        for line in lines
        if line.startswith(("│", "┃"))
    ]


def test_columns_bear_the_names_and_a_side_without_calls_has_no_time(tmp_path: Path) -> None:
    slow = BACKWARD.rsplit(",", 1)[0] + ",10130.4"
    first = written(tmp_path / "a.log", FORWARD, slow)
    second = written(tmp_path / "b.log", FORWARD, REORDER)
    rows = printed(first, second, names=("new", "old"))
    (heading,) = {tuple(row[1:5]) for row in rows if row[0] in ("kind", "problem")}
    assert heading == ("new", "old", "new", "old")
    of_kind = {row[0]: row[1:] for row in rows if row[0].endswith("backward data") and row[1]}
    assert of_kind["convolution backward data"] == ["1", "0", "10,130.4", "–", "only new"]
    assert ["reorder", "0", "1", "–", "1.0", "only old"] in rows
    assert not any("0.00" in row for row in rows)
    assert [row[1:] for row in rows if "10,130.40" in row] == [
        ["1", "0", "10,130.40", "–", "10,130.40"]
    ]


@pytest.mark.parametrize(
    ("names", "headings"),
    [
        (("a-long-name-of-a-new-run", "an-older-run"), ("…-of-a-new-run", "an-older-run")),
        (("a-long-name-of-a-run", "my-long-name-of-a-run"), ("first", "second")),
    ],
)
def test_long_names_are_cut_and_stay_apart(
    tmp_path: Path, names: tuple[str, str], headings: tuple[str, str]
) -> None:
    file = written(tmp_path / "a.log", FORWARD)
    rows = printed(file, file, names=names)
    assert tuple(next(row for row in rows if row[0] == "kind")[1:3]) == headings
