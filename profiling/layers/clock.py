"""Stamps of time on the device that computes."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from retinanet.errors import InputError


class Clock(NamedTuple):
    """How to take stamps, and what lies between two of them."""

    stamp: Callable[[], Any]
    """Of the place that the work has come to."""
    milliseconds: Callable[[Any, Any], float]
    """From one stamp to a later one, after `finish`."""
    finish: Callable[[], None]
    """Wait until all stamps are taken."""


def clock_of(device: str) -> Clock:
    """The clock of `cpu` or `cuda`.

    A processor's work is done when the call returns. A GPU is given its work in a queue, so that
    stamps are events in that queue.

    Raises:
        InputError: There is no GPU that torch can use.
    """
    if device == "cpu":
        return Clock(time.perf_counter_ns, lambda one, other: (other - one) / 1e6, lambda: None)
    if not torch.cuda.is_available():
        raise InputError("--device: cuda: torch finds no GPU that it can use; leave it out")
    return Clock(record_event, lambda one, other: one.elapsed_time(other), torch.cuda.synchronize)


def record_event() -> torch.cuda.Event:
    """An event at this place of the current queue."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
