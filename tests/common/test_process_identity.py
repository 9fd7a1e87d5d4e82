"""Ending the process of another rank: the right one, even if it is stopped, and no other."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.machine import ProcessIdentity, kill_if_local, own_process, start_time

Sleeper = subprocess.Popen[bytes]


@pytest.fixture
def stopped() -> Iterator[Sleeper]:
    process = subprocess.Popen(["sleep", "100"])
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.wait()


def identity_of(process: Sleeper) -> ProcessIdentity:
    own, started = own_process(), start_time(process.pid)
    assert own is not None and started is not None
    return replace(own, number=process.pid, started=started)


def test_a_stopped_process_is_killed(stopped: Sleeper) -> None:
    kill_if_local(identity_of(stopped))
    assert stopped.wait(timeout=20) == -signal.SIGKILL


def test_a_process_that_has_got_the_number_of_another_is_left_alone(stopped: Sleeper) -> None:
    target = identity_of(stopped)
    kill_if_local(replace(target, started=target.started - 1))
    kill_if_local(replace(target, namespace="another boot pid:[1]"))
    with pytest.raises(subprocess.TimeoutExpired):
        stopped.wait(timeout=0.3)


def test_nothing_happens_for_a_process_that_is_gone_unknown_or_this_one() -> None:
    ended = subprocess.Popen(["sleep", "100"])
    target = identity_of(ended)
    ended.kill()
    ended.wait()
    kill_if_local(target)
    kill_if_local(None)
    kill_if_local(own_process())


def test_a_process_learns_the_same_of_itself_as_others_do() -> None:
    program = "from common.machine import own_process; print(own_process()); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    said = process.stdout.readline().decode().strip()
    assert said == str(identity_of(process))
    process.communicate(b"\n", timeout=20)
