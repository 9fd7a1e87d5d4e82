"""`python -m launch run` as it is typed, with the mpirun of this environment."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
MPIRUN = Path(sys.prefix) / "bin" / "mpirun"

RANK = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
line = f"rank {os.environ['PMI_RANK']} of {os.environ['PMI_SIZE']}: {sys.argv[1:]}"
os.write(1, f"{line}\\n".encode())  # at once: lines of two ranks do not mix
if "wait" in sys.argv:
    signal.pause()
sys.exit(3)
"""


def launch(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "launch", "run", *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return path


def test_ranks_are_started_by_the_printed_command(script: Path) -> None:
    process = launch("--np", "2", "--mpirun", str(MPIRUN), "--", str(script), "--a", "b c")
    output, errors = process.communicate(timeout=60)
    assert sorted(output.splitlines()) == [
        "rank 0 of 2: ['--a', 'b c']",
        "rank 1 of 2: ['--a', 'b c']",
    ]
    assert process.returncode == 3
    printed = errors.splitlines()[0]
    assert printed == f"{MPIRUN} -bind-to none -np 2 {sys.executable} {script} --a 'b c'"
    pasted = subprocess.run(printed, shell=True, capture_output=True, text=True, check=False)
    assert sorted(pasted.stdout.splitlines()) == sorted(output.splitlines())
    assert pasted.returncode == 3


def test_a_signal_reaches_the_ranks_and_their_status_comes_back(script: Path) -> None:
    process = launch("--np", "2", "--mpirun", str(MPIRUN), "--", str(script), "wait")
    assert process.stdout is not None
    started = {process.stdout.readline() for _ in range(2)}
    assert started == {"rank 0 of 2: ['wait']\n", "rank 1 of 2: ['wait']\n"}
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["--hosts", "a,b"], "-hosts a:2,b:2 -np 4"),
        (["--hosts", "a:3,b:1"], "-hosts a:3,b:1 -np 4"),
        (["--hostfile", "hosts"], "-hosts a:2,b:2 -np 4"),
    ],
)
def test_a_dry_run_only_prints(where: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    where = [str(tmp_path / word) if word == "hosts" else word for word in where]
    process = launch("--np", "4", "--mpirun", str(MPIRUN), *where, "--dry-run", "train.py", "x=1")
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    words = f"{MPIRUN} -bind-to none {expected} {sys.executable} train.py x=1"
    assert shlex.split(output) == words.split()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--np", "2"], "nothing to run: add -- train.py"),
        (["--np", "2", "--"], "nothing to run: add -- train.py"),
        (["--np", "2", "--", "none.py"], "none.py: no such file in"),
        (["--np", "2", "--", "--config", "x"], "--config: expected a command after --"),
        (["--np", "3", "--hosts", "a,b", "--", "train.py"], "--np 3: does not divide evenly"),
        (["--np", "2", "--hostfile", "none", "--", "train.py"], "--hostfile: none: No such file"),
        (["--np", "2", "--mpirun", "none", "--", "train.py"], "--mpirun: none is not a program"),
    ],
)
def test_mistakes_are_one_line(words: list[str], named: str) -> None:
    process = launch(*words)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors.startswith("error: ") and errors.count("\n") == 1 and named in errors
    assert output == ""


def test_starting_ranks_loads_no_torch() -> None:
    text = "import sys, launch.start.command as _; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY, check=True)
