"""The commands as a user types them."""

import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from PIL import Image

from profiling.__main__ import main
from profiling.ablate.measure import alone_on_this_machine
from tests.support.commands import RunHere, error_line, run_program, start_program


@pytest.fixture(autouse=True)
def own_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Use another lock than a real measurement on this machine."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))


def ablate(run_here: RunHere, *arguments: str | Path) -> CompletedProcess[str]:
    return run_here(main, "ablate", *arguments)


@pytest.mark.slow
def test_run_list_and_report(run_here: RunHere, tmp_path: Path) -> None:
    options = ("--quick", "--out", tmp_path)
    done = ablate(run_here, "run", "convergence", *options)
    assert done.returncode == 0, done.stderr
    assert "1 of 1: convergence: How many more epochs" in done.stdout and "1.97×" in done.stdout
    content = json.loads((tmp_path / "convergence" / "result.json").read_text())
    assert content["command"].startswith("retinanet profile ablate run convergence --quick")
    assert content["environment"]["cpu"] and content["environment"]["code"]
    listed = ablate(run_here, "list", *options)
    assert listed.returncode == 0, listed.stderr
    for text in ("frozen-layers", "1.16×", "convergence", "measured (quick)", " no "):
        assert text in listed.stdout
    assert listed.stdout.count(" yes ") == 1

    (tmp_path / "ablations.html").write_text("mine")
    again = ("report", *options, "--again", tmp_path)
    refused = ablate(run_here, *again)
    assert refused.returncode == 2
    assert "ablations.html: exists; give --overwrite or another --to" in refused.stderr
    assert (tmp_path / "ablations.html").read_text() == "mine"
    report = ablate(run_here, *again, "--overwrite")
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "ablations.html").read_text() != "mine"
    assert "4 of 4 conclusions" in report.stdout
    with Image.open(tmp_path / "pictures" / "convergence.png") as picture:
        assert picture.width > 800 and len(picture.getcolors() or ()) > 5
    page = (tmp_path / "ablations.md").read_text()
    sizes = "epochs at batch size 2048 over epochs at batch size 256"
    assert f"| convergence | reference: {sizes} | 1.97× |" in page


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("run", "frozen-layer"), "frozen-layer: no such ablation; did you mean frozen-layers?"),
        (("report", "--quick"), "contains no results; run `retinanet profile ablate"),
        (("run", "decoders", "--photos", "nowhere"), "--photos: nowhere is not a folder"),
    ],
)
def test_wrong_arguments_are_one_line(
    run_here: RunHere, tmp_path: Path, arguments: tuple[str, ...], error: str
) -> None:
    assert error in error_line(ablate(run_here, *arguments, "--out", tmp_path))


def test_wrong_result_file_stops_before_measuring(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "convergence" / "result.json"
    file.parent.mkdir()
    file.write_text("{}")
    done = ablate(run_here, "run", "decoders", "convergence", "--quick", "--out", tmp_path)
    assert f"{file}: is not a result of" in error_line(done)
    assert not (tmp_path / "decoders").exists()


def test_second_measurement_at_once_is_refused(run_here: RunHere, tmp_path: Path) -> None:
    with alone_on_this_machine():
        done = ablate(run_here, "run", "convergence", "--quick", "--out", tmp_path)
    assert error_line(done).startswith("error: another `ablate run` is measuring")
    assert not (tmp_path / "convergence").exists()
    with alone_on_this_machine():  # it was released
        pass


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_ctrl_c_keeps_complete_rounds_to_continue(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "profiling", "ablate", "run", "decoders", "--quick"]
    command += ["--out", str(tmp_path)]
    file = tmp_path / "decoders" / "result.json"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    first = start_program(*command, env=environment, process_group=0)
    deadline = time.monotonic() + 120
    while not file.exists():
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGINT)
    printed, errors = first.communicate(timeout=30)
    assert first.returncode == 130
    saved = re.search(r"stopped in decoders: (\d) rounds are saved", printed)
    assert saved is not None, printed
    assert errors == "interrupted\n"
    before = json.loads(file.read_text())
    assert len(before["rounds"]) == int(saved[1]) < before["rounds_wanted"]
    second = run_program(*command, timeout=300)
    assert second.returncode == 0, second.stderr
    after = json.loads(file.read_text())
    assert after["rounds"][: len(before["rounds"])] == before["rounds"]
    assert len(after["rounds"]) == after["rounds_wanted"]
