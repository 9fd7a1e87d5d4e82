"""A rank whose launcher is killed, as a process of its own that runs the real watch."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.ranks import Ranks
from launch.watchdog import launcher_process

# As a rank in an exchange: it says by a file that it was asked to stop, and prints as it ends.
RANK = """
import os, signal, sys, time
from multiprocessing import Pipe
from pathlib import Path
from launch.watchdog import Watch
def stop(number, frame):
    print("a line of progress that nobody reads", flush=True)
    Path(sys.argv[1]).write_text("asked")
    os._exit(75)
signal.signal(signal.SIGTERM, stop)
ours, theirs = Pipe()
Watch(0, {1: ours}, hosts=["a", "b"]).start(silence_s=100, launcher=os.getppid())
print("ready", flush=True)
time.sleep(100)
"""


def test_a_rank_whose_launcher_is_killed_is_asked_to_stop(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    launcher = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" "$2"; true', sys.executable, RANK, str(asked)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None and launcher.stdout.readline() == "ready\n"
    launcher.kill()
    launcher.communicate(timeout=10)  # the pipe's other end is closed when the rank has ended
    end = time.monotonic() + 10
    while not asked.exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def ranks_of(launcher: str) -> Ranks:
    return Ranks(rank=0, size=2, local_rank=0, local_size=2, launcher=launcher)


@pytest.mark.parametrize("launcher", ["mpich", "intel-mpi", "open-mpi", "slurm"])
def test_launchers_that_stay_are_watched(launcher: str) -> None:
    assert launcher_process(ranks_of(launcher), {}) == os.getppid()


def test_a_script_that_has_started_ranks_may_end_before_them() -> None:
    assert launcher_process(ranks_of("torchrun"), {"RANK": "0"}) is None
    torchrun = {"RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    assert launcher_process(ranks_of("torchrun"), torchrun) == os.getppid()
