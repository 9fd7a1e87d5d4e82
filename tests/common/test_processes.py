"""Processes that are started, stopped and explained, and pools of processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from common.errors import InputError
from common.processes import (
    end_with_caller,
    exit_reason,
    process_pool,
    run_tasks,
    running,
    start_process,
    start_with_caller,
    stop_process,
    wait_for,
)
from tests.support.commands import start_program
from tests.support.processes import is_running, wait_until_gone

IGNORES_SIGTERM = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
EXITS_ON_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("ready", flush=True)
time.sleep(60)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_until_ended(process: int) -> None:
    end = time.monotonic() + 10
    while is_running(process) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(process)


def test_process_has_its_own_group_and_gets_sigterm_first() -> None:
    process = start_process(python(EXITS_ON_SIGTERM), stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    stop_process(process, patience_s=30)
    assert process.returncode == 3 and process.stdout.closed


@pytest.mark.parametrize("patience_s", [0.0, 0.2])
def test_process_that_ignores_sigterm_is_killed_with_its_children(patience_s: float) -> None:
    process = start_process(python(IGNORES_SIGTERM), stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    stop_process(process, patience_s=patience_s)
    assert process.returncode == -signal.SIGKILL
    wait_until_ended(child)


def test_children_of_a_script_that_ends_on_sigterm_are_killed() -> None:
    script = ["bash", "-c", "sleep 60 & echo $!; wait"]
    process = start_process(script, stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    stop_process(process, patience_s=30)
    assert process.returncode == -signal.SIGTERM
    wait_until_ended(child)


def test_sigterm_stops_a_running_command() -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        running(python(EXITS_ON_SIGTERM), stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    assert process.returncode == 3
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_whose_start_is_interrupted_is_ended(number: signal.Signals) -> None:
    numbers: list[int] = []

    def interrupt(received: int, _: object) -> None:
        numbers.append(received)
        raise KeyboardInterrupt

    def interrupt_parent() -> None:
        """Signal the parent, which waits for the beginning of the command."""
        os.kill(os.getppid(), number)

    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_process(["sleep", "61.25"], preexec_fn=interrupt_parent)
        assert signal.getsignal(number) is interrupt and numbers == [number]
    finally:
        signal.signal(number, before)
    wait_until_gone("sleep 61.25", seconds=1)


def test_callback_runs_until_the_process_has_ended() -> None:
    process = start_process(python("import time; time.sleep(0.2); raise SystemExit(4)"))
    looks: list[float] = []
    assert wait_for(process, lambda: looks.append(0.0), every_s=0.05) == 4
    assert looks


@pytest.mark.parametrize(
    ("status", "errors", "reason"),
    [
        (-9, "said\n", "its process was ended by SIGKILL (out of memory?)"),
        (-15, "", "its process was ended by SIGTERM"),
        (1, "Traceback\nValueError: no\n\n", "its process ended with status 1: ValueError: no"),
        (2, "", "its process ended with status 2: no error output"),
    ],
)
def test_exit_reason(status: int, errors: str, reason: str) -> None:
    assert exit_reason(status, errors) == reason


ENDLESS = """
import time
from common.processes import process_pool, run_tasks

def work(number):
    time.sleep(0.001)
    return number

with process_pool(2) as pool:
    print("started", flush=True)
    for result in run_tasks(pool, work, range(10**9), at_once=8):
        pass
"""


def square(number: int) -> int:
    return number * number


def kill_at_seven(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_every_task_has_one_result() -> None:
    with process_pool(2) as pool:
        results = list(run_tasks(pool, square, range(50), at_once=4))
    assert sorted(results) == [number * number for number in range(50)]


def test_killed_process_is_an_input_error() -> None:
    with (
        pytest.raises(InputError, match="was killed"),
        process_pool(2) as pool,
    ):
        list(run_tasks(pool, kill_at_seven, range(50), at_once=4))


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.15])
def test_ctrl_c_ends_the_pool(delay: float) -> None:
    process = start_program(sys.executable, "-c", ENDLESS, process_group=0)
    assert process.stdout and process.stdout.readline() == "started\n"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert errors.rstrip().endswith("KeyboardInterrupt")


WITH_CALLER = """
import sys, time
from common.processes import end_with_caller, start_with_caller
if sys.argv[1] == "caller":
    process, _ = start_with_caller([sys.executable, "-c", sys.argv[2], "command", ""])
    print(process.pid, flush=True)
else:
    end_with_caller()
time.sleep(60)
"""


def test_command_ends_when_its_caller_is_killed() -> None:
    caller = start_program(sys.executable, "-c", WITH_CALLER, "caller", WITH_CALLER)
    assert caller.stdout is not None
    process = int(caller.stdout.readline())
    assert is_running(process)
    caller.kill()
    caller.communicate()
    wait_until_ended(process)


def test_command_that_hangs_is_killed_after_its_caller() -> None:
    command = python(
        "import signal, time, common.processes as processes; processes.SECONDS_TO_SAVE = 0.2;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); processes.end_with_caller();"
        "print('ready', flush=True); time.sleep(60)"
    )
    process, descriptor = start_with_caller(command, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.close(descriptor)
    assert process.wait(10) == -signal.SIGKILL
    stop_process(process)


def test_command_ends_when_the_descriptor_is_closed() -> None:
    command = python("from common.processes import end_with_caller; import time; end_with_caller()")
    command[-1] += "; print('ready', flush=True); time.sleep(60)"
    process, descriptor = start_with_caller(command, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.close(descriptor)
    assert process.wait(10) == -signal.SIGTERM
    stop_process(process)


def test_inherited_variable_of_a_caller_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("9999", "x"):
        monkeypatch.setenv("RETINANET_CALLER", value)
        end_with_caller()
    time.sleep(0.1)
