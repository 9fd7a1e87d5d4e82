"""Signals that end a run between two steps."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Self

from common.errors import StoppedBeforeStart
from common.processes import STOPS

SECONDS_OF_ONE_CTRL_C = 0.2
"""`timeout -s INT`, and a script that passes signals on, bring the same one twice."""

SECONDS_TO_UNWIND = 1.0
"""After a second Ctrl-C; an operator of torch, or an exchange with other ranks, may take longer."""


class StopRequest:
    """True once all ranks know that one of them has received SIGINT, SIGTERM or SIGUSR1.

    SIGUSR1 is what Open MPI's mpirun passes on, and what batch systems send before a time limit. A
    second SIGINT interrupts at once. A context manager: outside it, signals do what they did
    before.
    """

    def __init__(
        self, *, starting: bool = False, end_now: Callable[[], object] | None = None
    ) -> None:
        """Make a request that is not set yet.

        While `starting`, until `hold_back` is called, a signal ends the run at once. `end_now` ends
        the process after a second SIGINT that the main thread does not handle, since it is inside a
        library.
        """
        self.received = ""
        """The signal that this process has received, such as `SIGTERM`; others may not know yet."""
        self.name = ""
        """The signal that all ranks know of."""
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
        """From now on a signal waits until the ranks agree: there is something to save."""
        self._raises = False

    def agree(self, received: Sequence[str]) -> None:
        """Set the request if any rank has received a signal; the same on all of them."""
        self.name = self.name or next(filter(None, received), "")

    def __enter__(self) -> Self:
        """Handle signals from now on."""
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, self._receive) for number in STOPS}
        threading.Thread(target=self._watch, name="signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup_before)
        self._is_over.set()
        os.close(self._pipe[1])  # the thread reads the end, and closes the other

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
            if not self._is_over.wait(SECONDS_TO_UNWIND):
                self._end_now()
        os.close(reads)


def is_another(since: float) -> bool:
    """Return whether a signal is not the first one of `since` that came twice. [monotonic s]"""
    return time.monotonic() - since > SECONDS_OF_ONE_CTRL_C
