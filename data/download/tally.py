"""What threads have done so far, counted together."""

import threading


class Tally:
    """Counts of images, bytes and failures that several threads add to."""

    def __init__(self, *, start: int) -> None:
        """Begin with `start` images that were there before."""
        self.start = start
        self.done = start
        """Images dealt with, in vain or not, and those that were there before."""
        self.bytes = 0
        self.retries = 0
        self.last_reason = ""
        self.failed: dict[str, str] = {}
        """Why an image could not be had, by its name."""
        self.failures_in_a_row = 0
        self.broken: BaseException | None = None
        """What ended a thread that should not have ended."""
        self._lock = threading.Lock()

    def add_image(self, size: int) -> None:
        """An image of `size` bytes is there."""
        with self._lock:
            self.done += 1
            self.bytes += size
            self.failures_in_a_row = 0

    def add_failure(self, name: str, reason: str) -> None:
        """An image could not be had."""
        with self._lock:
            self.done += 1
            self.failed[name] = reason
            self.failures_in_a_row += 1

    def add_retry(self, reason: str, pause: float) -> None:
        """An attempt failed; there will be another after `pause` seconds."""
        with self._lock:
            self.retries += 1
            self.last_reason = reason

    def note(self) -> str:
        """What is worth saying beside the progress; empty if all is well."""
        with self._lock:
            failed = f", {len(self.failed)} missing" if self.failed else ""
            retries = f", {self.retries} retries ({self.last_reason})" if self.retries else ""
            return failed + retries
