"""`python -m launch tune` as it is typed, with what was measured before."""

import json
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.tune.measurements import write_measurements
from retinanet.command_line import run_command
from retinanet.exit_codes import BAD_INPUT
from tests.launch.tune.by_hand import measurements

NETWORK = ("--network", "24Gbit/s,20us")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    write_measurements(file, measurements())
    return file


def tune(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["launch", "tune", *map(str, words)])
    return run_command(main)


def test_answer_names_the_choice_its_command_and_why_not_the_obvious(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(monkeypatch, "--plan", plan, "--hosts", "256", *NETWORK) == 0
    output = capsys.readouterr().out
    assert "largest error of 4 predicted: 0.0%" in output
    assert "\ntake " in output and "\nnot 256 hosts × 2 ranks × 28 threads, 2 images" in output
    assert "command: python -m launch run --np" in output and "training.learning_rate=" in output


def test_files_that_are_asked_for_are_written(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart, slurm, numbers = (tmp_path / name for name in ("a.png", "job.sbatch", "all.json"))
    files = ("--chart", chart, "--slurm", slurm, "--json", numbers)
    assert tune(monkeypatch, "--plan", plan, "--hosts", "64", *NETWORK, *files) == 0
    assert chart.read_bytes().startswith(b"\x89PNG")
    content = json.loads(numbers.read_text())
    hosts = content["winner"]["allocation"]["hosts"]
    assert f"--nodes={hosts}\n" in slurm.read_text()
    assert content["ranking"][0] == content["winner"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--hosts", "4"), "--hosts 4: the network between them is not known; give --network"),
        (("data.image_size=64",), "was measured with no overrides"),
        (("--deadline", "0.01"), "--deadline 0.01: the soonest"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    words: tuple[str, ...],
    error: str,
    plan: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tune(monkeypatch, "--plan", plan, *words) == BAD_INPUT
    message = capsys.readouterr().err
    assert error in message and message.count("\n") == 1


def test_another_file_is_not_taken_for_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text("{}")
    assert tune(monkeypatch, "--plan", file) == BAD_INPUT
    assert "is nothing that" in capsys.readouterr().err
    assert file.read_text() == "{}"
