"""`python -m launch scale` as it is typed, with the real mpirun and real training steps."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from launch.__main__ import main
from tests.launch.ranks import MPIRUN, REPOSITORY, ended
from tests.launch.two_hosts import two_hosts
from tests.support.commands import RunHere
from tests.support.fast_precision import FAST_PRECISION

SMALL = (
    "--mpirun",
    str(MPIRUN),
    "--batch-size",
    "1",
    "--warm-up",
    "1",
    "data.scenes.train=8",
    "data.scenes.validation=1",
    "data.image_size=64",
    f"engine.precision={FAST_PRECISION}",
)


def start(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "launch", "scale", *map(str, words)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_with(argument: str, *, variable: str | None = None) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        if argument.encode() in arguments and (not variable or variable.encode() in variables):
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """What a small study printed, its JSON and its chart."""
    file = tmp_path_factory.mktemp("study") / "small.json"
    words = ("--ranks", "1,2,4096", "--threads", "1", "--rounds", "1", "--steps", "2")
    process = start(*words, "--json", file, *SMALL)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output, json.loads(file.read_text()), file.with_suffix(".png")


@pytest.mark.whole_machine
def test_ranks_under_mpirun_are_measured(study: tuple[str, dict[str, Any], Path]) -> None:
    _, content, _ = study
    one, two, many = content["workload"]["combinations"]
    assert (one["fits"], two["fits"], many["fits"]) == (True, True, False)
    assert "jobs" not in many
    ((alone,),) = one["jobs"]
    assert len(alone["seconds"]) == 2 and alone["held_back_seconds"] == []
    (ranks,) = two["jobs"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    for rank in ranks:
        assert len(rank["seconds"]) == len(rank["held_back_seconds"]) == 2
        for step, exchange in zip(rank["seconds"], rank["exchange_seconds"], strict=True):
            assert 0 < exchange < step
    assert two["step_s"] == median(map(max, *(rank["seconds"] for rank in ranks)))
    assert two["images_per_s"] == pytest.approx(2 / two["step_s"])
    assert content["workload"]["complete"]


@pytest.mark.whole_machine
def test_what_does_not_fit_is_a_dash_with_its_reason(
    study: tuple[str, dict[str, Any], Path],
) -> None:
    output, _, chart = study
    row = next(line for line in output.splitlines() if line.startswith("│              1"))
    assert row.split("│")[2].strip() == "1.00" and row.split("│")[4].strip() == "–"
    assert any(line.startswith("– 4096 × 1: 4096 ranks are more") for line in output.splitlines())
    assert chart.stat().st_size > 10_000
    assert f"chart: {chart}" in output


@pytest.mark.whole_machine
def test_ctrl_c_ends_all_ranks_and_prints_what_was_measured() -> None:
    mark = f"run.name=interrupted-{os.getpid()}"
    process = start("--ranks", "1,2", "--threads", "1", "--steps", "3", *SMALL, mark)
    end = time.monotonic() + 60
    while not processes_with(mark, variable="PMI_RANK=1"):
        assert time.monotonic() < end
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted; incomplete: 1 of 4 jobs"
    row = next(line for line in output.splitlines() if line.startswith("│              1"))
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["1.00", "?"]
    assert processes_with(mark) == []


@pytest.mark.whole_machine
def test_ranks_on_two_hosts_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    words = ("--hosts", "left,right", "--ranks", "1,2", "--threads", "1", "--rounds", "1")
    command = [sys.executable, "-m", "launch", "scale", *words, "--steps", "1", "--json", str(file)]
    with two_hosts(tmp_path, names_are_loopback=True) as hosts:
        done = ended(hosts.start_on_left([*command, *SMALL], environment=os.environ))
    assert done.code == 0, done.errors
    one, two = json.loads(file.read_text())["workload"]["combinations"]
    assert one["why_not"].startswith("--np 1: does not divide evenly among 2 hosts")
    assert two["hosts"] == {"left": 1, "right": 1}
    ((first, second),) = two["jobs"]
    assert (first["host"], second["host"]) == ("left", "right")
    assert "all hosts are assumed" in done.output


def test_a_mistake_that_ranks_find_ends_the_study(tmp_path: Path) -> None:
    missing = f"data.root={tmp_path / 'none'}"
    process = start("--ranks", "1", "--threads", "1", "--config", "coco.yaml", missing, *SMALL[:2])
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    first, second = errors.splitlines()
    assert first.startswith("error: data.root: ") and "is not a folder" in first
    assert second == "1 rank × 1 thread, round 1 of 2: exit status 2"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ranks", "4096"], "--ranks, --threads: no combination fits: 4096 × 1"),
        (["--ranks", "1,x"], "expected numbers such as 1,2,4, found '1,x'"),
        (["--chart", "data.image_size=64"], "expected a name that ends in .png, found 'data.image"),
        (["launch.threads=4"], "launch.threads: set by --threads"),
        (["training.batch_size=4"], "training.batch_size: set by --batch-size or --global-batch"),
        (["--json", "README.md"], "README.md: exists; give --json or --chart another file"),
        (["--mpirun", "README.md"], "--mpirun: README.md is not a program"),
    ],
)
def test_wrong_arguments_are_told_before_anything_runs(
    words: list[str], expected: str, run_here: RunHere
) -> None:
    done = run_here(main, "scale", *words)
    assert done.returncode == 2
    assert expected in done.stderr


def test_the_command_line_loads_neither_torch_nor_matplotlib() -> None:
    look = "import sys, launch.__main__; print({'torch', 'numpy', 'matplotlib'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
