"""`make next` and `make update`: what their checks say, and that a failed one stops no other."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiling.onednn_log.log import read_logs
from tests.newer import OK, Options, Row, judge, judge_logs, judge_steps, resolve, run_suite
from tests.profiling.onednn_log.logs import FIXTURES, write_log
from tests.support.commands import write_program

NEW = FIXTURES / "torch-2.15.0-step.log"
OPTIONS = Options(goal="next", packages="torch torchvision", tier="test", slower=1.1, bench="")


def steps(*seconds: float) -> dict[str, Any]:
    """Return what `bench step --against` writes of a new and an old step."""
    new, old = seconds
    return {
        "workload": {"images": 2, "image_size": 800},
        "contestants": {
            "torch": {"median_s": new},
            "torch (torch 2.8.0)": {"median_s": old},
            "ceiling": {"median_s": 1.0},
        },
        "ratios": {"torch/torch (torch 2.8.0)": old / new, "torch (torch 2.8.0)/torch": new / old},
    }


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ((2.0, 2.0), "ok: 1.00× the time"),
        ((2.16, 2.0), "ok: 1.08×"),
        ((13.2, 2.0), "slower: 6.60×"),
    ],
)
def test_slower_steps_fail(seconds: tuple[float, float], verdict: str) -> None:
    for content in (steps(*seconds), {"workloads": [steps(*seconds)]}):
        (row,) = judge_steps(content, slower=1.1)
        assert row.check == "step of torch, 2 × 800" and row.old == "2 s"
        assert row.verdict.startswith(verdict)
        assert row.passes == verdict.startswith(OK)


def test_log_of_the_newest_torch_is_understood() -> None:
    log = read_logs([NEW])
    row, unknown = judge_logs(log, log)
    assert (row.verdict, unknown) == (OK, [])
    assert row.new.startswith("oneDNN 3.13.3, ")
    assert log.calls()


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (",convolution,", ",folded_convolution,", "folded_convolution is an unknown kind"),
        ("attr-scratchpad:user", "attr-scratchpad:user attr-tuned:1", "no attribute 'attr-tuned'"),
        (",exec,cpu,matmul,", ",execute,cpu,matmul,", "unknown operation 'execute'"),
        (",cpu,matmul,", ",cpu,fast,matmul,", "fields after the operation"),
        ("info,oneDNN v", "info,oneDNN version ", "the header has no versions any more"),
    ],
)
def test_what_is_new_in_a_log_is_named(tmp_path: Path, before: str, after: str, named: str) -> None:
    text = NEW.read_text()
    assert before in text
    row, unknown = judge_logs(
        read_logs([NEW]),
        read_logs([write_log(tmp_path / "a", *text.replace(before, after).splitlines())]),
    )
    assert not row.passes and f"{len(unknown)} unknown" in row.verdict
    assert any(named in line for line in unknown), unknown


def test_check_that_fails_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: Options) -> Iterator[Row]:
        yield Row("step of torch", "1 s", "1 s")
        yield from json.loads("")

    def fine(_: Options) -> Iterator[Row]:
        yield Row("the last", "", "")

    assert not judge(OPTIONS, {"training step": broken, "last": fine})
    printed = capsys.readouterr().out
    assert "Expecting value" in printed and "failed" in printed and "the last" in printed
    assert judge(OPTIONS, {"last": fine})


@pytest.mark.parametrize(
    ("prints", "status", "row"),
    [
        (
            "=== 3 passed, 1 skipped, 2 warnings in 1.5s ===",
            0,
            ("3 passed, 1 skipped in 1.5s", "ok"),
        ),
        (
            "=== 1 failed, 3 passed in 61.5s (0:01:01) ===",
            1,
            ("1 failed, 3 passed in 61.5s", "failed"),
        ),
        ("nothing", 0, ("no test ran", "failed")),
    ],
)
def test_suite_that_fails_or_runs_no_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str, status: int, row: tuple[str, str]
) -> None:
    write_program(tmp_path / "make", f"echo \"$*\"; echo '{prints}'; exit {status}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (found,) = run_suite(OPTIONS)
    assert (found.check, found.new, found.verdict) == ("make test", *row)


def test_only_torch_moves_and_only_in_pins_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_INDEX", "https://index/nightly")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements.txt").write_text("torch==2.15.0\n")
    write_program(tmp_path / "setup.sh", 'echo "$*" >>asked')
    resolve(OPTIONS)
    assert (tmp_path / ".pins-next" / "requirements.txt").read_text() == "torch==2.15.0\n"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 4 and not any(" --upgrade " in line for line in asked)
    assert all(
        "--upgrade-package=torch " in x and "--index https://index/nightly" in x for x in asked
    )
    assert all(line.split("--output-file ")[1].startswith(".pins-next/") for line in asked)
