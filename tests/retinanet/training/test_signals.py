import os
import signal

import pytest

from retinanet.training.signals import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_stop_and_is_named(number: signal.Signals) -> None:
    with StopRequest() as stop:
        assert not stop and stop.name == ""
        os.kill(os.getpid(), number)
        assert stop and stop.name == number.name


def test_a_second_interrupt_stops_at_once() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_sigterm_still_waits_for_the_step() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.name == "SIGTERM"


@pytest.mark.parametrize("received", [None, signal.SIGINT, signal.SIGTERM])
def test_handlers_are_given_back(received: signal.Signals | None) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(ZeroDivisionError), StopRequest():
        if received is not None:
            os.kill(os.getpid(), received)
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in numbers] == before
