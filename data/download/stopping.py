"""SIGTERM, as batch systems send it, ends a download as Ctrl-C does."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """While the context lasts SIGTERM raises `KeyboardInterrupt(signal.SIGTERM)`.

    For the main thread, which alone can set what signals do.
    """
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.SIGTERM)
