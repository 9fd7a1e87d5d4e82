"""A limit on what may wait for ever inside a library, where no exception can reach it."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TOO_LATE = 1


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """End the process with one line on stderr if the context lasts longer than so many seconds.

    `what` is a sentence's beginning: "rank 3 on node-b: the meeting of the ranks".
    """

    def end() -> None:
        print(f"error: {what} took longer than {seconds:g} s", file=sys.stderr, flush=True)
        os._exit(TOO_LATE)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
