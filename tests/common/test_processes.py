"""Processes that are followed, stopped and explained."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.processes import exit_reason, running, start_process, stop_process, wait_for

TWO_IN_A_GROUP = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
ENDS_WHEN_ASKED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("ready", flush=True)
time.sleep(60)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_has_a_group_of_its_own_and_is_asked_before_it_is_killed() -> None:
    process = start_process(python(ENDS_WHEN_ASKED), stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    stop_process(process, patience_s=30)
    assert process.returncode == 3 and process.stdout.closed


@pytest.mark.parametrize("patience_s", [0.0, 0.2])
def test_what_does_not_end_is_killed_with_all_it_has_started(patience_s: float) -> None:
    process = start_process(python(TWO_IN_A_GROUP), stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    stop_process(process, patience_s=patience_s)
    assert process.returncode == -signal.SIGKILL
    end = time.monotonic() + 10
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(child)


def test_sigterm_stops_a_running_command_before_this_process() -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        running(python(ENDS_WHEN_ASKED), stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    assert process.returncode == 3
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN


def test_a_process_is_looked_at_until_it_has_ended() -> None:
    process = start_process(python("import time; time.sleep(0.5); raise SystemExit(4)"))
    looks: list[float] = []
    assert wait_for(process, lambda: looks.append(0.0), every_s=0.05) == 4
    assert looks


@pytest.mark.parametrize(
    ("status", "errors", "reason"),
    [
        (-9, "said\n", "its process was ended by SIGKILL (out of memory?)"),
        (-15, "", "its process was ended by SIGTERM"),
        (1, "Traceback\nValueError: no\n\n", "its process ended with status 1: ValueError: no"),
        (2, "", "its process ended with status 2: it said nothing"),
    ],
)
def test_an_end_has_a_reason(status: int, errors: str, reason: str) -> None:
    assert exit_reason(status, errors) == reason
