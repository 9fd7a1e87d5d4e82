"""`retinanet profile compare`: two logs side by side."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from common.errors import InputError
from profiling.__main__ import main
from profiling.compare import (
    OPERATORS,
    Comparison,
    Side,
    choose_names,
    compare,
    compute_ratio,
    draw_comparison,
    hint_on_types,
    parse_condition,
    print_comparison,
    sum_by_kind,
)
from profiling.onednn_log.log import read_logs
from profiling.onednn_log.parse import Mark, mark_line
from tests.profiling.onednn_log.example_lines import SPELLINGS
from tests.profiling.onednn_log.logs import shared_logs, write_log
from tests.support.commands import RunHere, error_line

FORWARD = SPELLINGS["3.13"]
BACKWARD = FORWARD.replace("forward_training", "backward_data")
REORDER = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0 "
    "dst:f32::blocked:ba::f0,,,8x8,1"
)


def compare_logs(
    first: Path, second: Path, *, names: tuple[str, str] = ("a", "b"), with_types: bool = True
) -> Comparison:
    logs = (read_logs([file]) for file in (first, second))
    return compare(*map(Side, names, logs), with_types=with_types)


@pytest.fixture
def frozen(tmp_path: Path) -> tuple[Path, Path]:
    """Two logs; the first has gradients that the second, with a frozen layer, does not have."""
    ours = write_log(tmp_path / "ours.log", FORWARD, FORWARD, BACKWARD, BACKWARD, REORDER)
    reference = write_log(tmp_path / "reference.log", FORWARD, FORWARD, REORDER, REORDER)
    return ours, reference


def test_calls_of_only_one_side_are_sorted_by_cost(frozen: tuple[Path, Path]) -> None:
    comparison = compare_logs(*frozen)
    first, second = comparison.only_one
    # One reorder of 1 ms costs more than two gradients of 0.25 ms.
    assert (first.key.kind, first.extra_calls, first.extra_ms) == ("reorder", -1, 1)
    extra = (second.key.direction, second.extra_calls, second.extra_ms)
    assert extra == ("backward data", 2, 0.5)
    (shared,) = comparison.both
    assert (shared.key.direction, shared.ratio) == ("forward", 1)
    kinds = sum_by_kind(comparison.pairs)
    assert sum(kind.first.ms for kind in kinds) == pytest.approx(2.0)
    assert sum(kind.second.ms for kind in kinds) == pytest.approx(2.5)
    assert kinds[0].name == "reorder"


def test_two_versions_with_the_same_network_match_call_by_call() -> None:
    logs = {file.name: file for file in shared_logs()}
    old = next(file for name, file in logs.items() if name.endswith("2.6.0-verbose1.log"))
    new = next(file for name, file in logs.items() if "3.7.1" in name)
    comparison = compare_logs(old, new)
    assert comparison.only_one == []
    assert len(comparison.both) == 38


def test_types_and_inference(tmp_path: Path) -> None:
    training = write_log(tmp_path / "a.log", FORWARD)
    bf16 = write_log(tmp_path / "b.log", FORWARD.replace("f32", "bf16"))
    inference = write_log(
        tmp_path / "c.log", FORWARD.replace("forward_training", "forward_inference")
    )
    assert compare_logs(training, inference).only_one == []
    by_type = compare_logs(training, bf16)
    assert len(by_type.only_one) == 2 and "--ignore-types" in hint_on_types(by_type)
    by_shape = compare_logs(training, bf16, with_types=False)
    assert by_shape.only_one == [] and not hint_on_types(by_shape)
    mixed = write_log(tmp_path / "e.log", FORWARD, BACKWARD)
    assert not hint_on_types(compare_logs(mixed, training))  # Only one side has more work


def test_steps_are_compared_with_steps(tmp_path: Path) -> None:
    def marked(steps: int, call: str = FORWARD) -> list[str]:
        lines = [REORDER]  # Outside of steps
        for step in range(steps):
            begin, end = (mark_line(Mark(1.0, edge, step, None)).strip() for edge in (True, False))
            lines += [begin, call, end]
        return lines

    first = write_log(tmp_path / "a.log", *marked(2))
    second = write_log(tmp_path / "b.log", *marked(6)[:-1], FORWARD)  # the last is incomplete
    comparison = compare_logs(first, second)
    (pair,) = comparison.pairs
    assert (pair.first.calls, pair.second.calls, pair.second.ms) == (1, 1, 0.25)
    title = draw_comparison(comparison)._suptitle  # type: ignore[attr-defined]
    assert "per step" in title.get_text()
    with pytest.raises(InputError, match=r"neither log has 'reorder'"):
        compute_ratio(parse_condition("reorder > 1"), comparison)
    empty = write_log(tmp_path / "empty.log", *marked(2, call="no call"))
    assert not compare_logs(first, empty).is_by_step


def runs(folder: Path, *step_ms: float, calls: str = FORWARD, slow: str = "") -> Path:
    """Write a log for each run of a program, all with the step 1; the last one is slow."""
    folder.mkdir()
    for run, milliseconds in enumerate(step_ms):
        begin, end = (
            mark_line(Mark(time, edge, 1, None)).strip()
            for time, edge in ((0.0, True), (milliseconds, False))
        )
        write_log(folder / f"{run}.log", begin, slow if run and slow else calls, end)
    return folder


def test_several_runs_are_as_many_steps_and_the_fastest_ones_have_less_noise(
    tmp_path: Path, run_here: RunHere
) -> None:
    slow = FORWARD.rsplit(",", 1)[0] + ",25"
    new, old = runs(tmp_path / "new-2.15", 3, 9, slow=slow), runs(tmp_path / "old-2.8", 6, 7, 8)
    command = ("compare", new, old, "--fail-if", "wall > 0.6", "--fail-if", "total > 1.1")
    done = run_here(main, *command)
    assert done.returncode == 4
    assert "mean step by the marks: 6.0 and 7.0 ms, 0.86" in done.stdout
    assert "FAILED: total > 1.1: ratio 50.500" in done.stdout  # (0.25 + 25) / 2 and 0.25
    assert (
        "the ratio of all calls is 50.50, that of each problem's fastest call 1.00" in done.stdout
    )
    assert "│ total               │        1 │       1 │" in done.stdout  # calls of a step, names
    assert "new-2.15" in done.stdout and "old-2.8" in done.stdout
    done = run_here(main, *command, "--fastest")
    assert done.returncode == 0
    assert "passed: wall > 0.6: ratio 0.500" in done.stdout and "fastest call" in done.stdout


@pytest.mark.parametrize(
    ("first", "second", "caution"),
    [
        ([FORWARD] * 4, [FORWARD] * 2, "most problems have 2 times as many calls in the first log"),
        (
            ["onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:4", FORWARD],
            ["onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2", FORWARD],
            "threads differ: 4; 2",
        ),
        (
            [FORWARD, "onednn_verbose,v1,primitive,exec,cpu,new"],
            [FORWARD],
            "first is line 2: 2 fields",
        ),
    ],
)
def test_what_makes_two_logs_hard_to_compare_is_said_first(
    tmp_path: Path, run_here: RunHere, first: list[str], second: list[str], caution: str
) -> None:
    logs = write_log(tmp_path / "a.log", *first), write_log(tmp_path / "b.log", *second)
    done = run_here(main, "compare", *logs, "--fail-if", "convolution > 3")
    assert done.returncode == 0
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("caution: ")]
    assert caution in line


@pytest.mark.parametrize(
    ("lines", "condition", "why"),
    [
        ([FORWARD], "wall > 1", "it needs steps in both logs"),
        (
            [FORWARD, *["onednn_verbose,v1,primitive,exec,cpu,new"] * 3],
            "total > 1",
            "3 of 4 oneDNN",
        ),
        ([FORWARD.rsplit(",", 1)[0] + ",0"], "total > 1", "neither log has a time above 0"),
        ([FORWARD.rsplit(",", 1)[0]], "total > 1", "8 fields after the operation"),
    ],
)
def test_conditions_that_the_logs_cannot_decide(
    tmp_path: Path, run_here: RunHere, lines: list[str], condition: str, why: str
) -> None:
    log = write_log(tmp_path / "a.log", *lines)
    done = run_here(main, "compare", log, log, "--fail-if", condition)
    assert why in error_line(done) and done.stdout == ""


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
def test_conditions(frozen: tuple[Path, Path], text: str, ratio: float) -> None:
    comparison = compare_logs(*frozen)
    condition = parse_condition(text)
    result = compute_ratio(condition, comparison)
    assert result == pytest.approx(ratio)
    is_met = OPERATORS[condition.operator](result, condition.bound)
    assert is_met == (text != "total > 1.1")
    for wrong in ("", "total", "total > much", "total = 1", "1 > total"):
        with pytest.raises(InputError, match=r"--fail-if .*expected"):
            parse_condition(wrong)


@pytest.mark.parametrize(
    ("names", "headings"),
    [
        (("a-long-name-of-a-new-run", "an-older-run"), ("…-of-a-new-run", "an-older-run")),
        (("a-long-name-of-a-run", "my-long-name-of-a-run"), ("first", "second")),
    ],
)
def test_long_names_are_shortened_and_stay_different(
    tmp_path: Path, names: tuple[str, str], headings: tuple[str, str]
) -> None:
    file = write_log(tmp_path / "a.log", FORWARD)
    rows = printed_rows(compare_logs(file, file, names=names))
    assert tuple(next(row for row in rows if row[0] == "kind")[1:3]) == headings


def test_names_are_the_shortest_path_ends_that_differ() -> None:
    ours, theirs = Path("/runs/ours/onednn/rank0.log"), Path("/runs/theirs/onednn/rank0.log")
    assert choose_names(None, ours, theirs) == ("ours/onednn/rank0", "theirs/onednn/rank0")
    assert choose_names(None, ours, ours) == ("first", "second")
    assert choose_names("a,b", ours, theirs) == ("a", "b")
    for names in ("a", "a,", ",b", "a,b,c"):
        with pytest.raises(InputError, match="--names"):
            choose_names(names, ours, theirs)


@pytest.mark.slow
def test_exit_status_and_files(
    frozen: tuple[Path, Path], tmp_path: Path, run_here: RunHere
) -> None:
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    command = ("compare", *frozen)
    done = run_here(main, *command, "--fail-if", "total > 1.1", "--out", out, "--json", numbers)
    assert done.returncode == 0
    assert "passed: total > 1.1: ratio 0.800" in done.stdout
    done = run_here(main, *command, "--fail-if", "total > 1.1", "--fail-if", "calls > 1")
    assert done.returncode == 4
    assert "FAILED: calls > 1: ratio 1.250" in done.stdout
    done = run_here(main, *command, "--fail-if", "pooling > 1")
    assert done.returncode == 2
    assert "'pooling'" in done.stderr and "total, reorder, conv" in done.stderr
    assert run_here(main, *command, "--out", out).returncode == 2  # The files exist
    with (out / "comparison.csv").open(encoding="utf-8") as table:
        assert [line["kind"] for line in csv.DictReader(table)][:2] == ["reorder", "convolution"]
    content = json.loads(numbers.read_text(encoding="utf-8"))
    assert (content["first"], content["by_step"]) == ("ours", False)
    assert [kind["kind"] for kind in content["kinds"]].count("convolution") == 2
    assert {file.name for file in out.iterdir()} == {
        "comparison.csv", "comparison.png", "comparison.svg",
    }  # fmt: skip


def printed_rows(comparison: Comparison) -> list[list[str]]:
    """Return the cells of all printed tables, row by row."""
    console = Console(file=io.StringIO(), width=200)
    print_comparison(console, comparison, top=9)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [
        [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
        for line in lines
        if line.startswith(("│", "┃"))
    ]


def test_columns_have_names_and_a_side_without_calls_has_no_time(tmp_path: Path) -> None:
    slow = BACKWARD.rsplit(",", 1)[0] + ",10130.4"
    first = write_log(tmp_path / "a.log", FORWARD, slow)
    second = write_log(tmp_path / "b.log", FORWARD, REORDER)
    rows = printed_rows(compare_logs(first, second, names=("new", "old")))
    (heading,) = {tuple(row[1:5]) for row in rows if row[0] in ("kind", "problem")}
    assert heading == ("new", "old", "new", "old")
    by_kind = {row[0]: row[1:] for row in rows if row[0].endswith("backward data") and row[1]}
    assert by_kind["convolution backward data"] == ["1", "0", "10,130.4", "–", "only new"]
    assert ["reorder", "0", "1", "–", "1.0", "only old"] in rows
    assert not any("0.00" in row for row in rows)
    assert [row[1:] for row in rows if "10,130.40" in row] == [
        ["1", "0", "10,130.40", "–", "10,130.40"]
    ]
