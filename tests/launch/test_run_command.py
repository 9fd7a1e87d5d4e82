"""`python -m launch run` as it is typed, with the mpirun of this environment."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.__main__ import main
from tests.launch.processes_left import wait_until_gone
from tests.support.commands import RunHere

REPOSITORY = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.prefix) / "bin" / "mpirun"

RANK = """
import os, signal, sys
def stop(number, frame):
    open(f"{sys.argv[0]}-{os.environ['PMI_RANK']}", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
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


def test_an_mpirun_that_is_not_on_path_finds_the_programs_beside_it(
    script: Path, tmp_path: Path
) -> None:
    # As Intel MPI's, a script that runs mpiexec.hydra.
    for name, runs in (("mpirun", "a-helper-of-mpirun"), ("a-helper-of-mpirun", str(MPIRUN))):
        program = tmp_path / "mpi" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {runs} "$@"\n')
        program.chmod(0o755)
    process = launch("--np", "2", "--mpirun", str(tmp_path / "mpi/mpirun"), "--", str(script))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert sorted(output.splitlines()) == ["rank 0 of 2: []", "rank 1 of 2: []"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_asks_the_ranks_to_stop_and_their_status_comes_back(
    number: signal.Signals, script: Path
) -> None:
    process = launch("--np", "2", "--mpirun", str(MPIRUN), "--", str(script), "wait")
    assert process.stdout is not None
    started = {process.stdout.readline() for _ in range(2)}
    assert started == {"rank 0 of 2: ['wait']\n", "rank 1 of 2: ['wait']\n"}
    process.send_signal(number)
    process.communicate(timeout=30)  # the pipe's other end is closed once all ranks have ended
    assert process.returncode == (75 if number != signal.SIGKILL else -signal.SIGKILL)
    asked = sorted(path.name for path in script.parent.glob("rank.py-*"))
    assert asked == ["rank.py-0", "rank.py-1"]
    wait_until_gone(str(script))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["--hosts", "a,b"], "-hosts a:2,b:2 -np 4"),
        (["--hosts", "a:3,b:1"], "-hosts a:3,b:1 -np 4"),
        (["--hostfile", "hosts"], "-hosts a:2,b:2 -np 4"),
    ],
)
def test_a_dry_run_only_prints(
    where: list[str], expected: str, tmp_path: Path, run_here: RunHere
) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    where = [str(tmp_path / word) if word == "hosts" else word for word in where]
    start = ("--np", "4", "--mpirun", MPIRUN, *where, "--dry-run", "train.py", "x=1")
    done = run_here(main, "run", *start)
    assert (done.returncode, done.stderr) == (0, "")
    words = f"{MPIRUN} -bind-to none {expected} {sys.executable} train.py x=1"
    assert shlex.split(done.stdout) == words.split()


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
        (
            ["--np", "2", "--hosts", "a.invalid,localhost", "train.py"],
            "--hosts: a.invalid: not known",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], named: str, run_here: RunHere) -> None:
    done = run_here(main, "run", *words)
    assert (done.returncode, done.stdout) == (2, "")
    errors = done.stderr
    assert errors.startswith("error: ") and errors.count("\n") == 1 and named in errors


def test_starting_ranks_loads_no_torch() -> None:
    text = "import sys, launch.run as _; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY, check=True)
