"""Signals that ask a run to end: it does so between two steps."""

import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self


class StopRequest:
    """True once all ranks know that one of them has got SIGINT, SIGTERM or SIGUSR1.

    SIGUSR1 is what Open MPI's mpirun passes on, and what batch systems send before a time limit. A
    second SIGINT interrupts at once. A context manager: outside it, signals do what they did
    before.
    """

    def __init__(self) -> None:
        self.received = ""
        """The signal that this process has got, such as `SIGTERM`; the others may not know yet."""
        self.name = ""
        """The signal that all ranks know of."""
        self._previous: dict[int, object] = {}

    def __bool__(self) -> bool:
        """Whether the run should end after this step."""
        return bool(self.name)

    def agree(self, received: Sequence[str]) -> None:
        """Take what the ranks have received until now: the same on all of them."""
        self.name = self.name or next(filter(None, received), "")

    def __enter__(self) -> Self:
        """Start to listen."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        signal.signal(signal.SIGINT, signal.default_int_handler)
