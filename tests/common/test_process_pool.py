import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import InputError
from common.processes import process_pool, run_tasks

REPOSITORY = Path(__file__).resolve().parents[2]

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


def test_every_task_gives_its_result_once() -> None:
    with process_pool(2) as pool:
        results = list(run_tasks(pool, square, range(50), at_once=4))
    assert sorted(results) == [number * number for number in range(50)]


def test_a_process_that_is_killed_is_told_in_one_line() -> None:
    with (
        pytest.raises(InputError, match="was killed, most likely for want of memory"),
        process_pool(2) as pool,
    ):
        list(run_tasks(pool, kill_at_seven, range(50), at_once=4))


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.1, 0.15])
def test_ctrl_c_ends_it_whenever_it_comes(delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout and process.stdout.readline() == "started\n"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert errors.rstrip().endswith("KeyboardInterrupt")
