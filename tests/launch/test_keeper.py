"""A rank behind its keeper, as processes of their own: how it ends, and what a launcher sees."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.processes_left import children_of, wait_until_ended
from tests.launch.ranks import REPOSITORY, run_ranks

# The rank says that it is there; with `beats` it also says so to its keeper, as the watch does.
RANK = """
import os, signal, sys, time
from launch.watchdog import supervise_this_rank
case, silence_s = sys.argv[1], float(sys.argv[2])
supervisor = supervise_this_rank(launcher=os.getppid(), silence_s=silence_s)
if "beats" in case:
    supervisor.beat()
parent = os.getppid()
def stop(number, frame):
    os.write(1, f"heard {signal.Signals(number).name}\\n".encode())  # `print` may be at work
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
print("nobody keeps me", flush=True)
"""

Kept = subprocess.Popen[str]


def keep(case: str, *, silence_s: float = 100) -> Kept:
    """Start a rank, and wait until it is there."""
    kept = subprocess.Popen(
        [sys.executable, "-c", RANK, case, str(silence_s)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert kept.stdout is not None and kept.stdout.readline() == "ready\n"
    return kept


def rank_of(kept: Kept) -> int:
    [rank] = children_of(kept.pid)
    return rank


@pytest.fixture
def beating() -> Iterator[Kept]:
    kept = keep("beats")
    yield kept
    kept.kill()
    kept.communicate(timeout=20)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 75, 130])
def test_before_the_others_watch_a_rank_its_exit_code_is_the_launchers_to_know(code: int) -> None:
    kept = keep(f"exits {code}")
    kept.communicate(timeout=20)
    assert kept.returncode == code


@pytest.mark.parametrize(("code", "told"), [(0, 0), (1, 0), (2, 2), (3, 3), (75, 75), (130, 130)])
def test_of_a_rank_that_others_watch_only_its_death_is_kept_from_the_launcher(
    code: int, told: int
) -> None:
    kept = keep(f"beats, exits {code}")
    kept.communicate(timeout=20)
    assert kept.returncode == told


@pytest.mark.parametrize(("case", "told"), [("silent", 137), ("beats", 0)])
def test_a_kill_is_told_as_shells_do_unless_others_watch(case: str, told: int) -> None:
    kept = keep(case)
    os.kill(rank_of(kept), signal.SIGKILL)
    kept.communicate(timeout=20)
    assert kept.returncode == told


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_signals_that_ask_to_stop_reach_the_rank(beating: Kept, name: str) -> None:
    beating.send_signal(signal.Signals[name])
    output, _ = beating.communicate(timeout=20)
    assert output == f"heard {name}\n"
    assert beating.returncode == 75


def test_a_rank_that_is_stopped_for_too_long_is_killed_and_one_that_beats_is_not() -> None:
    kept = keep("beats on", silence_s=1)
    rank = rank_of(kept)
    time.sleep(2)
    assert children_of(kept.pid) == [rank]
    os.kill(rank, signal.SIGSTOP)
    begin = time.monotonic()
    kept.communicate(timeout=20)
    assert kept.returncode == 0 and time.monotonic() - begin < 10


def test_a_rank_that_has_not_begun_to_beat_is_given_its_time() -> None:
    kept = keep("silent", silence_s=0.1)
    time.sleep(1.5)
    assert kept.poll() is None and children_of(kept.pid)
    os.kill(rank_of(kept), signal.SIGKILL)
    kept.communicate(timeout=20)


def test_a_rank_whose_keeper_is_killed_goes_on_and_sees_that_it_has_another_parent(
    beating: Kept,
) -> None:
    beating.kill()
    output, _ = beating.communicate(timeout=20)
    assert output == "nobody keeps me\n"


def test_with_the_launcher_the_keeper_goes_and_then_the_rank() -> None:
    words = [sys.executable, "-c", RANK, "beats on", "100"]
    launcher = subprocess.Popen(
        ["sh", "-c", '"$0" "$@"; true', *words],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None and launcher.stdout.readline() == "ready\n"
    [keeper] = children_of(launcher.pid)
    [rank] = children_of(keeper)
    launcher.kill()
    output, _ = launcher.communicate(timeout=20)  # to the end of all that write there
    assert output == "nobody keeps me\n"
    wait_until_ended([keeper, rank])


@pytest.mark.whole_machine
@pytest.mark.parametrize("words", [[], ["alone"]])
def test_under_mpirun_a_death_that_is_kept_from_it_ends_no_other_rank(
    words: list[str], tmp_path: Path
) -> None:
    """MPICH ends all when a rank goes without having told it; without a keeper it does."""
    program = str(Path(__file__).with_name("kept_ranks.py"))
    job = run_ranks(2, program, str(tmp_path), *words)
    assert (tmp_path / "rank 0 has ended by itself").exists() == (not words)
    assert (job.code == 0) == (not words), job
