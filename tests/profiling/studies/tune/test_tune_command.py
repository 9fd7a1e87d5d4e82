"""`python -m launch tune` as it is typed, with what was measured before."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.cli import run_command
from common.errors import BAD_INPUT
from launch.__main__ import main
from profiling.studies.tune.measurements import write_measurements
from tests.launch.ranks import REPOSITORY
from tests.profiling.studies.tune.by_hand import measurements, probes

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
    assert "largest error on 4 not in fit: 0.0%" in output
    assert "\nbest: " in output and "\nnot 256 hosts × 2 ranks × 28 threads, 8 images" in output
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
    assert content["epochs"]["target"] == "mAP 0.34"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--hosts", "4"), "--hosts 4: the network between the hosts is unknown; give --network"),
        (("data.image_size=64",), "was measured with no overrides"),
        (("--deadline", "0.01"), "--deadline 0.01: the fastest"),
        (("--data", "demo.yaml"), "was measured with --data openimages; omit --data"),
        (("--probe", "8,16"), "--probe: the epochs of openimages are MLPerf's"),
        (("--probe-target", "0.3"), "--probe-target: the epochs of openimages are MLPerf's"),
        (("--measure-hosts", "a"), "--measure-hosts a: a network needs at least two hosts"),
        (("--hostfile", "none"), "--hostfile: none: No such file"),
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
    assert "was not written by" in capsys.readouterr().err
    assert file.read_text() == "{}"


@pytest.fixture
def probed(tmp_path: Path) -> Path:
    """A plan of drawn scenes, with probe runs."""
    file = tmp_path / "demo.json"
    small = ("data.image_size=96",)
    demo = replace(measurements(), data="demo.yaml", config="demo.yaml", overrides=small)
    write_measurements(file, replace(demo, images=1000, evaluated_images=150, probes=probes()))
    return file


def test_probed_plan_answers_with_its_own_data_epochs_and_learning_rate(
    probed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(monkeypatch, "--plan", probed, "--hosts", "8", *NETWORK) == 0
    output = capsys.readouterr().out
    assert "\nforecast to mAP 0.3 " in output
    assert "epochs to mAP 0.3: 6 probe runs of demo.yaml (2 seeds each; learning rate" in output
    assert "with the square root of the batch size), global batch sizes 8, 16, 32" in output
    command = output.splitlines()[-1]
    assert "--config demo.yaml" in command and command.count("data.image_size=96") == 1
    assert "training.target_map=0.3" in command and "training.warmup" not in command
    ranks = int(words_after(command, "--np"))
    batch = ranks * int(words_after(command, "training.batch_size="))
    rate = float(words_after(command, "training.learning_rate="))
    assert rate == pytest.approx(3e-4 * (batch / 8) ** 0.5, rel=0.01)


def words_after(command: str, option: str) -> str:
    return command.partition(option)[2].split()[0]


def test_lower_target_is_another_question_of_the_same_runs(
    probed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--plan", probed, "--probe-target", "0.15")
    assert tune(monkeypatch, *words) == 0
    assert "\nforecast to mAP 0.15 " in capsys.readouterr().out


def test_question_that_needs_more_training_is_not_begun_unasked(
    probed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = probed.read_bytes()
    assert tune(monkeypatch, "--plan", probed, "--probe-seeds", "3") == BAD_INPUT
    message = capsys.readouterr().err
    assert "3 of 9 probe runs have not trained to mAP 0.3; give --probe 8,16,32" in message
    assert probed.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--data", "demo.yaml"), "--data demo.yaml: probe runs take long"),
        (
            ("--data", "dem.yaml", "--plan", "new.json"),
            "--data dem.yaml: the number of epochs is unknown",
        ),
        (
            ("--data", "dem.yaml", "--plan", "new.json", "--probe", "8,16"),
            "dem.yaml: no such configuration file; did you mean demo.yaml?",
        ),
        (
            ("--data", "coco.yaml", "--plan", "new.json", "--probe", "8,16"),
            "--probe-target: is missing, and coco.yaml has no training.target_map",
        ),
        (
            (
                *("--data", "demo.yaml", "--plan", "new.json", "--probe", "8,16"),
                "training.gradient_accumulation=2",
            ),
            "training.gradient_accumulation=2: the planner chooses the global batch",
        ),
    ],
)
def test_what_probe_runs_lack_is_told_before_anything_runs(
    words: tuple[str, ...],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tune(monkeypatch, *words) == BAD_INPUT
    message = capsys.readouterr().err
    assert error in message and message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_probe_runs_of_another_plan_of_this_name_are_not_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "new-probes"
    folder.mkdir()
    words = ("--data", "demo.yaml", "--plan", tmp_path / "new.json", "--probe", "8,16")
    assert tune(monkeypatch, *words) == BAD_INPUT
    assert f"{folder}: has probe runs that are not from {words[3]}" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", ["8", "8,8", "0,8", "8,x"])
def test_probes_need_two_batch_sizes(
    sizes: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        tune(monkeypatch, "--probe", sizes)
    assert ended.value.code == BAD_INPUT
    assert "argument --probe: expected" in capsys.readouterr().err


def test_answer_from_a_file_loads_no_torch(probed: Path) -> None:
    program = f"""
import sys
sys.argv = ["launch", "tune", "--plan", {str(probed)!r}]
from launch.__main__ import main
main()
sys.exit("torch" in sys.modules)
"""
    subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL
    )
