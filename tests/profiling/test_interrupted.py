"""Commands whose workers end: by Ctrl-C, or killed; one line says so, and no process stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.profiling.efficiency.example_log import write_log
from tests.support.commands import start_program
from tests.support.processes import child_processes, wait_until_ended

COMMANDS = {
    "bench": "step --contestants=torch",
    "efficiency": "LOG --runner=torch --repeats=100000",
    "layers": "alexnet --batch=2 --image-size=64 --warm-up=1 --threads=1",
}


def start(command: str, options: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a command; return its process and its workers."""
    words = (sys.executable, "-m", "profiling", command, *options.split())
    # A process group, as a terminal creates it; Ctrl-C signals all of it.
    process = start_program(*words, process_group=0)
    while not (workers := child_processes(process.pid)):
        assert process.poll() is None
        time.sleep(0.05)
    return process, workers


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_leaves_no_worker(command: str, tmp_path: Path) -> None:
    options = COMMANDS[command].replace("LOG", str(write_log(tmp_path)))
    process, workers = start(command, options)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("interrupted\n") and "Traceback" not in errors
    wait_until_ended(workers)


@pytest.mark.slow
def test_killed_worker_is_one_line() -> None:
    process, [worker] = start("bench", COMMANDS["bench"])
    os.kill(worker, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("error: torch: ") and "SIGKILL" in errors
    assert "Traceback" not in errors
