"""The hook of MPIJob's workers, with real ranks below a process that ends as an ssh server does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.ranks import MPIRUN
from tests.support.commands import run_program, start_program

RANK = """
import os, pathlib, signal, sys, time

def stop(*_):
    time.sleep(0.5)
    (folder / f"checkpoint-{rank}").touch()
    sys.exit(75)

folder, rank = pathlib.Path(sys.argv[1]), os.environ["PMI_RANK"]
signal.signal(signal.SIGTERM, stop)
os.write(1, b"ready\\n")  # whole, since two ranks print at once
time.sleep(100)
"""
SERVER = 'trap "exit 0" TERM; "$@" & while :; do sleep 0.05; done'
HOOK = ("-m", "launch.image.stop_ranks")


@pytest.mark.slow
@pytest.mark.skipif(not MPIRUN.exists(), reason="MPICH is not installed in this environment")
def test_ranks_write_their_checkpoints_before_the_hook_ends(tmp_path: Path) -> None:
    ranks = (str(MPIRUN), "-np", "2", sys.executable, "-c", RANK, str(tmp_path))
    server = start_program("bash", "-c", SERVER, "sshd", *ranks, start_new_session=True)
    try:
        assert server.stdout is not None
        assert [server.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        done = run_program(sys.executable, *HOOK, str(server.pid), timeout=60)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
        assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def test_hook_without_ranks_ends_at_once() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        done = run_program(sys.executable, *HOOK, str(process.pid), timeout=60)
        process.kill()
    assert done.returncode == 0
