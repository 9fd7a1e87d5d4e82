"""Signals that ask a run to end: it does so between two steps."""

import signal
from types import FrameType, TracebackType
from typing import Self


class StopRequest:
    """True once SIGINT or SIGTERM has come; a second SIGINT interrupts at once.

    A context manager: outside it, signals do what they did before.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._previous: dict[int, object] = {}

    def __bool__(self) -> bool:
        """Whether the run should end after this step."""
        return self._signal is not None

    @property
    def name(self) -> str:
        """The signal's name, such as `SIGTERM`."""
        return signal.Signals(self._signal).name if self._signal is not None else ""

    def __enter__(self) -> Self:
        """Start to listen."""
        for number in (signal.SIGINT, signal.SIGTERM):
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
        self._signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
