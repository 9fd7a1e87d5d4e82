"""The relay as a process of its own, that signals come to."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

RELAY = """
import signal, sys
from launch.run import run_with_graceful_stop
sys.exit(run_with_graceful_stop(sys.argv[1:], stop_signal=signal.SIGUSR1, patience_s=0.3))
"""

# As mpirun does, it says when it is there; as ranks do, it ends after the first SIGUSR1 with 75.
CHILD = """
trap 'echo USR1; [ -n "$stay" ] || exit 75' USR1
trap 'echo TERM; exit 143' TERM
trap 'echo INT; exit 130' INT
echo ready
while :; do sleep 0.05; done
"""

PYTHON_CHILD = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(print("USR1") or 75))
print("ready", flush=True)
while True:
    signal.pause()
"""


def relay(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RELAY, *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    process = relay("bash", "-c", CHILD)
    yield process
    process.kill()
    process.wait()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_asks_and_the_status_is_the_childs(
    stop: signal.Signals, running: subprocess.Popen[str]
) -> None:
    assert first_line(running) == "ready\n"
    running.send_signal(stop)
    output, _ = running.communicate(timeout=10)
    assert (output, running.returncode) == ("USR1\n", 75)


def test_the_second_signal_is_passed_on_as_it_is() -> None:
    process = relay("bash", "-c", f"stay=1{CHILD}")
    assert first_line(process) == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert first_line(process) == "USR1\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("TERM\n", 143)


def test_a_second_ctrl_c_ends_with_the_status_of_one() -> None:
    # Open MPI's mpirun kills its ranks then and ends with 1.
    process = relay("bash", "-c", f"stay=1{CHILD.replace('exit 130', 'exit 1')}")
    assert first_line(process) == "ready\n"
    process.send_signal(signal.SIGINT)
    assert first_line(process) == "USR1\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("INT\n", 130)


def test_a_launcher_that_is_started_by_a_script_is_asked_itself() -> None:
    # Intel MPI's mpirun is such a script: SIGTERM and SIGUSR1 would end it alone.
    script = f"{sys.executable} -c {shlex.quote(PYTHON_CHILD)}\nrc=$?\nexit $rc"
    process = relay("sh", "-c", script)
    assert first_line(process) == "ready\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("USR1\n", 75)


@pytest.mark.parametrize(("then", "status"), [("sleep 100", 1), ("sleep 0.1; exit 5", 5)])
def test_a_launcher_that_waits_for_a_host_that_is_cut_off_is_ended(
    then: str, status: int, tmp_path: Path
) -> None:
    # As MPICH's mpirun does when the network is gone: its helper on this host has ended.
    helper = tmp_path / "hydra_pmi_proxy"
    helper.write_text("#!/bin/sh\nsleep 0.8\n")
    helper.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-c", RELAY, "sh", "-c", f"{helper}; {then}"],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = process.communicate(timeout=10)
    assert process.returncode == status
    assert ("mpirun waits for another host that does not answer" in errors) == (status == 1)


def test_a_relay_that_is_killed_asks_its_child_to_stop(running: subprocess.Popen[str]) -> None:
    assert first_line(running) == "ready\n"
    running.kill()
    output, _ = running.communicate(timeout=10)
    assert output == "USR1\n"


def test_ctrl_c_of_a_terminal_reaches_the_child_once() -> None:
    # A terminal sends it to the whole foreground group: here a group of the relay's own.
    words = shlex.join([sys.executable, "-c", RELAY, "bash", "-c", CHILD])
    process = subprocess.Popen(
        ["bash", "-c", f"exec {words}"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert first_line(process) == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("USR1\n", 75)


def test_an_ignored_hangup_stays_ignored() -> None:
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", RELAY, "bash", "-c", CHILD],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert first_line(process) == "ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("USR1\n", 75)


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_the_exit_status_is_the_childs(script: str, status: int) -> None:
    process = relay("bash", "-c", script)
    process.communicate(timeout=10)
    assert process.returncode == status
