import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from common.errors import StoppedBeforeStart
from retinanet.training import signals
from retinanet.training.signals import SECONDS_OF_ONE_CTRL_C, StopRequest, hold_signal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_requests_stop_once_ranks_agree(number: signal.Signals) -> None:
    with StopRequest() as stop:
        assert not stop and stop.received == ""
        os.kill(os.getpid(), number)
        assert not stop and stop.received == number.name
        stop.agree([stop.received])
        assert stop and stop.name == number.name


def test_signal_of_another_rank_counts() -> None:
    stop = StopRequest()
    stop.agree(["", ""])
    assert not stop
    stop.agree(["", "SIGTERM", "SIGINT"])
    assert stop and stop.name == "SIGTERM"
    stop.agree(["", "", "SIGINT"])
    assert stop.name == "SIGTERM"


def test_second_interrupt_stops_at_once() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received
        time.sleep(1.5 * SECONDS_OF_ONE_CTRL_C)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_repeated_signal_does_not_interrupt(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SIGTERM never does; a second SIGINT at once is a copy of the same Ctrl-C."""
    monkeypatch.setattr(signals, "SECONDS_OF_ONE_CTRL_C", 60.0)  # this process may have to wait
    with StopRequest() as stop:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.received == number.name


BUSY = """
import hashlib, os, sys, threading
from retinanet.training.signals import StopRequest
with StopRequest(starting=sys.argv[1] == "starting", end_now=lambda: os._exit(130)):
    threading.Timer(0.1, print, ["ready"], {"flush": True}).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000_000)  # no exception reaches it
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["starting", "training"])
def test_second_interrupt_ends_a_process_that_is_inside_a_library(phase: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, phase],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    try:
        time.sleep(2 * SECONDS_OF_ONE_CTRL_C)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGTERM, StoppedBeforeStart),
        (signal.SIGUSR1, StoppedBeforeStart),
        (signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_signal_ends_a_starting_run_and_is_held_back_later(
    number: signal.Signals, error: type[BaseException]
) -> None:
    with StopRequest(starting=True) as stop:
        with pytest.raises(error):
            os.kill(os.getpid(), number)
        stop.hold_back()
        os.kill(os.getpid(), number)
        assert stop.received == number.name


@pytest.mark.parametrize("starting", [True, False])
def test_held_signal_is_honoured_by_the_request(starting: bool) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        hold_signal()
        held = signal.getsignal(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        ends = pytest.raises(StoppedBeforeStart) if starting else nullcontext()
        with ends, StopRequest(starting=starting) as stop:
            assert stop.received == "SIGUSR1"
        assert signal.getsignal(signal.SIGUSR1) is held
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("received", [None, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_handlers_are_restored(received: signal.Signals | None) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(ZeroDivisionError), StopRequest():
        if received is not None:
            os.kill(os.getpid(), received)
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in numbers] == before
