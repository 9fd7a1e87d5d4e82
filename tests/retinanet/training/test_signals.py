import os
import signal

import pytest

from retinanet.training.signals import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_to_stop_once_all_ranks_know_of_it(number: signal.Signals) -> None:
    with StopRequest() as stop:
        assert not stop and stop.received == ""
        os.kill(os.getpid(), number)
        assert not stop and stop.received == number.name
        stop.agree([stop.received])
        assert stop and stop.name == number.name


def test_a_signal_of_another_rank_counts() -> None:
    stop = StopRequest()
    stop.agree(["", ""])
    assert not stop
    stop.agree(["", "SIGTERM", "SIGINT"])
    assert stop and stop.name == "SIGTERM"
    stop.agree(["", "", "SIGINT"])
    assert stop.name == "SIGTERM"


def test_a_second_interrupt_stops_at_once() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_sigterm_still_waits_for_the_step() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == "SIGTERM"


@pytest.mark.parametrize("received", [None, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_handlers_are_given_back(received: signal.Signals | None) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(ZeroDivisionError), StopRequest():
        if received is not None:
            os.kill(os.getpid(), received)
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in numbers] == before
