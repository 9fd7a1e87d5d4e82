"""The commands as a user types them."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from profiling.__main__ import main
from profiling.ablate.measure import alone_on_this_machine
from tests.support.commands import RunHere
from tests.support.without_locks import built_library, without_locks

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def own_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A measurement that goes on beside the tests holds the machine's own lock."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))


def ablate(run_here: RunHere, *words: str | Path) -> CompletedProcess[str]:
    return run_here(main, "ablate", *words)


def test_list_names_every_ablation_its_figure_and_what_is_measured(
    run_here: RunHere, tmp_path: Path
) -> None:
    done = ablate(run_here, "list", "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("frozen-layers", "1.16×", "convergence", "measured (quick)", "no"):
        assert word in done.stdout
    ablate(run_here, "run", "convergence", "--quick", "--out", tmp_path)
    again = ablate(run_here, "list", "--quick", "--out", tmp_path).stdout
    assert again.count(" yes ") == done.stdout.count(" yes ") + 1


def test_run_measures_says_what_it_found_and_leaves_a_result(
    run_here: RunHere, tmp_path: Path
) -> None:
    done = ablate(run_here, "run", "convergence", "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1: convergence: How many more epochs" in done.stdout
    assert "1.97×" in done.stdout
    content = json.loads((tmp_path / "convergence" / "result.json").read_text())
    assert content["command"].startswith("python -m profiling ablate run convergence --quick")
    assert content["environment"]["cpu"] and content["environment"]["code"]


def test_a_report_is_made_from_the_results_and_not_over_another(
    run_here: RunHere, tmp_path: Path
) -> None:
    ablate(run_here, "run", "convergence", "--quick", "--out", tmp_path)
    words = ("report", "--quick", "--out", tmp_path, "--again", tmp_path)
    done = ablate(run_here, *words)
    assert done.returncode == 0, done.stderr
    assert "confirms 4 of 4 conclusions" in done.stdout
    assert (tmp_path / "pictures" / "convergence.png").stat().st_size > 10_000
    page = (tmp_path / "ablations.md").read_text()
    assert "| convergence | reference: epochs at 2048 over epochs at 256 | 1.97× |" in page
    refused = ablate(run_here, *words)
    assert refused.returncode == 2
    assert "ablations.html: exists; give --overwrite" in refused.stderr
    assert ablate(run_here, *words, "--overwrite").returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "frozen-layer"), "frozen-layer: no such ablation; did you mean frozen-layers?"),
        (("report", "--quick"), "contains no results; run `python -m profiling ablate"),
        (("run", "decoders", "--photos", "nowhere"), "--photos: nowhere is not a folder"),
    ],
)
def test_what_is_wrong_is_one_line(
    run_here: RunHere, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = ablate(run_here, *words, "--out", tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_result_that_is_something_else_stops_before_anything_is_measured(
    run_here: RunHere, tmp_path: Path
) -> None:
    file = tmp_path / "convergence" / "result.json"
    file.parent.mkdir()
    file.write_text("{}")
    done = ablate(run_here, "run", "decoders", "convergence", "--quick", "--out", tmp_path)
    assert done.returncode == 2
    assert f"{file}: is not a result of" in done.stderr
    assert not (tmp_path / "decoders").exists()


def test_two_measurements_at_once_are_refused(run_here: RunHere, tmp_path: Path) -> None:
    with alone_on_this_machine():
        done = ablate(run_here, "run", "convergence", "--quick", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: another `ablate run` is measuring")
    assert not (tmp_path / "convergence").exists()
    assert ablate(run_here, "run", "convergence", "--quick", "--out", tmp_path).returncode == 0


def test_temporary_files_without_locks_are_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "profiling", "ablate", "run", "decoders", "--quick"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        cwd=REPOSITORY,
        env=without_locks(built_library(tmp_path), errno.ENOSYS),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {tempfile.gettempdir()}") and "TMPDIR" in done.stderr


@pytest.mark.whole_machine
def test_ctrl_c_keeps_whole_rounds_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "profiling", "ablate", "run", "decoders", "--quick"]
    command += ["--out", str(tmp_path)]
    file = tmp_path / "decoders" / "result.json"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    first = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not file.exists():
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGINT)
    printed, errors = first.communicate(timeout=30)
    assert first.returncode == 130
    kept = re.search(r"stopped in decoders: (\d) rounds are saved", printed)
    assert kept is not None, printed
    assert errors == "interrupted\n"
    before = json.loads(file.read_text())
    assert len(before["rounds"]) == int(kept[1]) < before["rounds_wanted"]
    second = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )
    assert second.returncode == 0, second.stderr
    after = json.loads(file.read_text())
    assert after["rounds"][: len(before["rounds"])] == before["rounds"]
    assert len(after["rounds"]) == after["rounds_wanted"]
