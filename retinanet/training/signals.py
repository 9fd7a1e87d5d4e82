"""Signals that end a run between two steps."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Self

from common.errors import StoppedBeforeStart
from common.processes import STOPS

SECONDS_OF_ONE_CTRL_C = 0.2
"""Within this time a second SIGINT is the same Ctrl-C: `timeout -s INT` and scripts that forward
signals deliver it twice."""

SECONDS_TO_UNWIND = 1.0
"""Time to end after a second Ctrl-C; an operator of torch or an exchange may block for longer."""


class HeldSignal:
    """A handler that notes a signal until a `StopRequest` takes over."""

    def __init__(self) -> None:
        """Create a handler that has received nothing."""
        self.received = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note the signal."""
        self.received = True


def hold_signal() -> None:
    """Hold SIGUSR1 until a `StopRequest` honours it.

    Batch systems send it a fixed time before the limit of a job, to a short one at its start. By
    default it would end this process with status 138 and without a line.
    """
    signal.signal(signal.SIGUSR1, HeldSignal())


class StopRequest:
    """True after all ranks have agreed that one of them received SIGINT, SIGTERM or SIGUSR1.

    Open MPI's mpirun forwards SIGUSR1, and batch systems send it before a time limit. A second
    SIGINT interrupts at once. A context manager: it restores the previous handlers at its end.
    """

    def __init__(
        self, *, starting: bool = False, end_now: Callable[[], object] | None = None
    ) -> None:
        """Create a request that is not set.

        While `starting`, until `hold_back` is called, a signal ends the run at once. `end_now` ends
        the process if the main thread cannot handle a second SIGINT because it is in a library.
        """
        self.received = ""
        """The signal that this process has received, such as `SIGTERM`; not agreed on yet."""
        self.name = ""
        """The signal that the ranks have agreed on."""
        self._raises = starting
        self._end_now = end_now or (lambda: None)
        self._since = 0.0
        self._previous: dict[int, object] = {}
        self._pipe = (-1, -1)
        self._wakeup_before = -1
        self._is_over = threading.Event()

    def __bool__(self) -> bool:
        """Whether the run should end after this step."""
        return bool(self.name)

    def hold_back(self) -> None:
        """Defer signals until the ranks agree, once the run has progress to save."""
        self._raises = False

    def agree(self, received: Sequence[str]) -> None:
        """Set the request if any rank has received a signal; the same on all of them."""
        self.name = self.name or next(filter(None, received), "")

    def __enter__(self) -> Self:
        """Handle signals from now on."""
        # Python runs handlers between bytecodes of the main thread only; the wake-up descriptor
        # gets each signal's number at once, for the thread that watches.
        self._pipe = os.pipe()
        # Python accepts only a wake-up descriptor that does not block.
        os.set_blocking(self._pipe[1], False)
        self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, self._receive) for number in STOPS}
        threading.Thread(target=self._watch, name="signals", daemon=True).start()
        held = self._previous[signal.SIGUSR1]
        if isinstance(held, HeldSignal) and held.received:
            with ExitStack() as stack:
                stack.push(self)  # restores the handlers if this raises
                self._receive(signal.SIGUSR1, None)
                stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup_before)
        # The thread may be waiting to end this process, which has unwound in time.
        self._is_over.set()
        # The thread then reads the end of file, and closes the other end.
        os.close(self._pipe[1])

    def _receive(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._raises:
            raise KeyboardInterrupt if number == signal.SIGINT else StoppedBeforeStart(name)
        if not self.received:
            self._since = time.monotonic()
        elif number == signal.SIGINT and is_another(self._since):
            raise KeyboardInterrupt
        self.received = name

    def _watch(self) -> None:
        """Watch for signals in a thread, even while the main thread is inside a library."""
        reads, since = self._pipe[0], 0.0
        while number := os.read(reads, 1):
            if number[0] not in STOPS:
                continue
            since = since or time.monotonic()
            if number[0] != signal.SIGINT or not is_another(since):
                continue
            # The main thread raises KeyboardInterrupt as soon as it runs Python code again. Only a
            # thread that stays inside a library needs this.
            if not self._is_over.wait(SECONDS_TO_UNWIND):
                self._end_now()
        os.close(reads)


def is_another(since: float) -> bool:
    """Return whether a signal is a new one, not a copy of the one at `since`. [monotonic s]"""
    return time.monotonic() - since > SECONDS_OF_ONE_CTRL_C
