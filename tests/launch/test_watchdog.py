"""Ranks that watch each other, their supervisors and their launcher, as real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from launch.ranks import Ranks
from launch.watchdog import launcher_process
from tests.launch.ranks import REPOSITORY, run_ranks
from tests.launch.watch_program import SILENCE_S, TRACEBACK
from tests.support.commands import run_program
from tests.support.processes import child_processes, wait_until, wait_until_ended

GROUP_ENDS = "group 1 (ranks 2-3) ends, the other groups continue\n"
NO_MESSAGE = "ended without a message (killed, or out of memory?)"
NO_HEARTBEAT = f"sent no heartbeat for {SILENCE_S:g} s (suspended, or no network?)"
KILLED = -9


class Ended(NamedTuple):
    codes: list[int]  # Of the ranks
    errors: str


def run_watch(folder: Path, case: str) -> Ended:
    command = (sys.executable, Path(__file__).with_name("watch_program.py"), folder, case)
    done = run_program(*command, env={"PYTHONPATH": str(REPOSITORY)}, timeout=60, check=True)
    return Ended(json.loads(done.stdout), done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "codes", "message"),
    [
        ("kill:3", [0, 0, 1, KILLED], f"warning: rank 3 on d {NO_MESSAGE}: {GROUP_ENDS}"),
        ("stop:3", [0, 0, 1, KILLED], f"warning: rank 3 on d {NO_HEARTBEAT}: {GROUP_ENDS}"),
        ("input:2", [0, 0, 2, 2], f"warning: a.json: wrong: {GROUP_ENDS}"),
        ("bug:3", [0, 0, 1, 1], f"{TRACEBACK}\nwarning: rank 3 has failed: {GROUP_ENDS}"),
    ],
    ids=["killed", "suspended", "bad input", "bug"],
)
def test_failure_in_another_group_ends_only_this_group(
    tmp_path: Path, case: str, codes: list[int], message: str
) -> None:
    assert run_watch(tmp_path, f"outlive {case}") == (codes, message)


def test_group_whose_ranks_are_all_killed_is_reported_once(tmp_path: Path) -> None:
    result = run_watch(tmp_path, "outlive kill:2 kill:3")
    # Either may be detected first, and the other may be ended before it kills itself.
    assert result.codes[:2] == [0, 0] and set(result.codes[2:]) in ({KILLED}, {KILLED, 1})
    assert result.errors in {
        f"warning: rank {name} {NO_MESSAGE}: {GROUP_ENDS}" for name in ("2 on c", "3 on d")
    }


@pytest.mark.parametrize(
    ("case", "codes", "message"),
    [
        ("outlive kill:0", [KILLED, 1, 1, 1], f"error: rank 0 on a {NO_MESSAGE}\n"),
        ("outlive kill:1", [1, KILLED, 1, 1], f"error: rank 1 on b {NO_MESSAGE}\n"),
        ("outlive interrupt:3", [130] * 4, "interrupted\n"),
        ("kill:3", [1, 1, 1, KILLED], f"error: rank 3 on d {NO_MESSAGE}\n"),
        ("outlive restore kill:3", [1, 1, 1, KILLED], f"error: rank 3 on d {NO_MESSAGE}\n"),
        ("input:0 input:1 input:2 input:3", [2] * 4, "error: a.json: wrong\n"),
        ("bug:3", [1] * 4, f"{TRACEBACK}\n"),
        pytest.param(
            "stop:0 bug:1",  # which rank 0 does not print
            [KILLED, 1, 1, 1],
            f"error: rank 0 on a {NO_HEARTBEAT}\n{TRACEBACK}\n",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_failures_that_end_all_ranks(
    tmp_path: Path, case: str, codes: list[int], message: str
) -> None:
    assert run_watch(tmp_path, case) == (codes, message)
    # Of bad input and Ctrl-C nothing remains; a failure that may be a bug leaves what there is.
    assert (tmp_path / "cleaned").exists() == ("input" in case or "interrupt" in case)


# The rank prints when it is ready; with `beats` it sends heartbeats to its supervisor.
RANK = """
import os, signal, sys, time
from retinanet.training.async_groups import supervisor as module
module.BEAT_S = 0.1
case, silence_s = sys.argv[1], float(sys.argv[2])
supervisor = module.supervise_this_rank(launcher=os.getppid(), silence_s=silence_s)
if "beats" in case:
    supervisor.beat()
parent = os.getppid()
def stop(number, frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())  # `print` is not reentrant
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, stop)
print("ready", flush=True)
if "exits" in case:
    sys.exit(int(case.split()[-1]))
while os.getppid() == parent:
    if "beats on" in case:
        supervisor.beat()
    time.sleep(0.05)
if "beats" in case:
    supervisor.beat()
print("no supervisor", flush=True)
"""

Supervised = subprocess.Popen[str]


def start_supervised(
    case: str, *, silence_s: float = 100, before: tuple[str, ...] = ()
) -> Supervised:
    """Start a rank behind its supervisor, and wait until it is ready."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", RANK, case, str(silence_s)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def output_and_code(process: Supervised) -> tuple[str, int]:
    output, _ = process.communicate(timeout=20)
    return output, process.returncode


@pytest.fixture
def beating() -> Iterator[Supervised]:
    process = start_supervised("beats")
    yield process
    process.kill()
    process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("exits 0", 0),
        ("exits 1", 1),
        ("exits 130", 130),
        # Once other ranks watch this one, a bug or a kill is hidden from the launcher, which would
        # end all ranks.
        ("beats, exits 0", 0),
        ("beats, exits 1", 0),
        ("beats, exits 2", 2),
        ("beats, exits 75", 75),
        ("beats, exits 130", 130),
    ],
)
def test_exit_code_of_a_supervised_rank(case: str, code: int) -> None:
    assert output_and_code(start_supervised(case)) == ("", code)


@pytest.mark.parametrize(("case", "code"), [("silent", 137), ("beats", 0)])
def test_exit_code_of_a_killed_rank(case: str, code: int) -> None:
    process = start_supervised(case, silence_s=100 if case == "beats" else 0.1)
    [rank] = child_processes(process.pid)
    if case == "silent":  # no heartbeat has been sent: the limit does not count yet
        time.sleep(0.4)
        assert process.poll() is None and child_processes(process.pid) == [rank]
    os.kill(rank, signal.SIGKILL)
    assert output_and_code(process) == ("", code)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_stop_signals_are_forwarded_to_the_rank(beating: Supervised, name: str) -> None:
    beating.send_signal(signal.Signals[name])
    assert output_and_code(beating) == (f"got {name}\n", 75)


@pytest.mark.slow
def test_suspended_rank_is_killed_and_a_beating_one_is_not() -> None:
    process = start_supervised("beats on", silence_s=0.5)
    [rank] = child_processes(process.pid)
    time.sleep(0.8)
    assert child_processes(process.pid) == [rank]
    os.kill(rank, signal.SIGSTOP)
    begin = time.monotonic()
    assert output_and_code(process) == ("", 0) and time.monotonic() - begin < 10


def test_rank_notices_the_end_of_its_supervisor(beating: Supervised) -> None:
    beating.kill()
    output, _ = output_and_code(beating)
    assert output == "no supervisor\n"


@pytest.mark.slow
def test_supervisor_and_rank_end_after_their_launcher() -> None:
    launcher = start_supervised("beats on", before=("sh", "-c", '"$0" "$@"; true'))
    [supervisor] = child_processes(launcher.pid)
    [rank] = child_processes(supervisor)
    launcher.kill()
    output, _ = output_and_code(launcher)  # until all that write to the pipe have ended
    assert output == "no supervisor\n"
    wait_until_ended([supervisor, rank])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["alone"]])
def test_supervisor_hides_a_killed_rank_from_mpirun(arguments: list[str], tmp_path: Path) -> None:
    """MPICH's mpirun ends all ranks if one ends without finalizing MPI."""
    program = str(Path(__file__).with_name("supervised_ranks.py"))
    job = run_ranks(2, program, str(tmp_path), *arguments)
    assert (tmp_path / "rank 0 has finished").exists() == (not arguments)
    assert (job.code == 0) == (not arguments), job


# A rank in an exchange: it writes a file when it is stopped, and prints as it ends.
WATCHED_RANK = """
import os, signal, sys, time
from multiprocessing import Pipe
from pathlib import Path
from launch import watchdog
watchdog.BEAT_S = 0.1
def stop(number, frame):
    print("progress for a broken pipe", flush=True)
    Path(sys.argv[1]).write_text("stopped")
    os._exit(75)
signal.signal(signal.SIGTERM, stop)
ours, theirs = Pipe()
watchdog.Watch(0, {1: ours}, hosts=["a", "b"]).start(silence_s=100, launcher=os.getppid())
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.slow
def test_rank_stops_when_its_launcher_is_killed(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    launcher = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" "$2"; true', sys.executable, WATCHED_RANK, str(stopped)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None and launcher.stdout.readline() == "ready\n"
    launcher.kill()
    launcher.communicate(timeout=10)  # the pipe's other end is closed when the rank has ended
    wait_until(stopped.exists)


@pytest.mark.parametrize(
    ("launcher", "environment", "is_watched"),
    [
        *((name, {}, True) for name in ("mpich", "intel-mpi", "open-mpi", "slurm")),
        ("torchrun", {"RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, True),
        ("torchrun", {"RANK": "0"}, False),  # a script that may end before the ranks
    ],
)
def test_launchers_that_outlive_their_ranks_are_watched(
    launcher: str, environment: dict[str, str], is_watched: bool
) -> None:
    ranks = Ranks(rank=0, size=2, local_rank=0, local_size=2, launcher=launcher)
    expected = os.getppid() if is_watched else None
    assert launcher_process(ranks, environment) == expected
