"""Waiting for other ranks and hosts: how long, what is printed meanwhile, and how it ends."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from common.errors import OUR_BUG

LOOK_S = 0.2  # Between two looks at what may come from another rank. [s]
BEAT_S = 1.0  # Between a rank's heartbeats, and between a supervisor's looks. [s]
ANSWER_S = 5.0
"""How long who is alive may take to connect, to answer, or to end after a failure. [s]"""
AGREEMENT_S = 60.0
"""How long the ranks of an mpirun may take to come to the exchange of an early error. [s]"""
NOTE_S, NOTE_SHARE = 30.0, 0.25
"""A note is printed after 30 s, or after this share of a limit below two minutes."""


def write_line(text: str) -> None:
    """Write a line to stderr at once."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Wait:
    """The description of the present wait for messages, updated by the waiting code."""

    what: str  # Such as "rank 0 at 10.0.0.1, port 29500"
    advice: str
    noted: bool = True  # Whether a note is printed while it lasts; the end of the limit always is
    clean_up: Callable[[], object] = lambda: None  # Called at the end of the limit


@contextmanager
def deadline(seconds: float, who: str, wait: Wait) -> Iterator[None]:
    """End the process with one line on stderr if the context exceeds a number of seconds.

    A library may wait for ever where no exception can reach it. A note is printed before. `who`
    begins the sentence, such as "rank 3 on node-b".
    """
    note_s = min(NOTE_S, NOTE_SHARE * seconds)

    def note() -> None:
        if wait.noted:
            write_line(
                f"note: {who} has waited {note_s:g} s for {wait.what} (limit: {seconds:g} s); "
                f"{wait.advice}"
            )

    def end() -> None:
        write_line(f"error: {who} waited {seconds:g} s for {wait.what}; {wait.advice}")
        wait.clean_up()
        os._exit(OUR_BUG)

    with timers((note_s, note), (seconds, end)):
        yield


@contextmanager
def timers(*actions: tuple[float, Callable[[], None]]) -> Iterator[None]:
    """Call each function from a thread once its seconds have passed, while the context lasts."""
    threads = [threading.Timer(seconds, action) for seconds, action in actions]
    for thread in threads:
        thread.daemon = True
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.cancel()
