"""A limit on what may wait for ever inside a library, where no exception can reach it."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

TOO_LATE = 1
NOTICE_S = 30.0
NOTICE_SHARE = 0.25
"""A note is printed after 30 s, or after this share of a limit below two minutes."""


@dataclass
class Wait:
    """What a process waits for at the moment, for messages; whoever waits keeps it up to date."""

    what: str
    """Such as "rank 0 at 10.0.0.1, port 29500"."""
    advice: str
    """What may be wrong, and where to look."""
    noted: bool = True
    """Whether a note is printed while it lasts; the end of the limit always is."""


@contextmanager
def deadline(seconds: float, who: str, wait: Wait) -> Iterator[None]:
    """End the process with one line on stderr if the context lasts longer than so many seconds.

    A note is printed after `NOTICE_S`.

    Args:
        seconds: The limit.
        who: A sentence's beginning, such as "rank 3 on node-b".
        wait: What the process waits for.
    """

    def note() -> None:
        if wait.noted:
            print(
                f"note: {who} has waited {notice_s:g} s for {wait.what}, and waits for up to "
                f"{seconds:g} s: {wait.advice}",
                file=sys.stderr,
                flush=True,
            )

    def end() -> None:
        print(
            f"error: {who} waited {seconds:g} s for {wait.what}: {wait.advice}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(TOO_LATE)

    notice_s = min(NOTICE_S, NOTICE_SHARE * seconds)
    timers = [threading.Timer(notice_s, note), threading.Timer(seconds, end)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
