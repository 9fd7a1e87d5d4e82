"""Lines appended to a file so that a full disk loses none of them."""

import os
from collections import deque
from pathlib import Path


class LineFile:
    """A file of which every line is whole. What a full disk does not take waits for the next."""

    def __init__(self, file: Path) -> None:
        """Append to a file, which is made if it is not there."""
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._waiting: deque[bytes] = deque()

    def write(self, line: str) -> None:
        """Append a line, without its end, after those that wait.

        Raises:
            OSError: It could not be written: it waits now.
        """
        self._waiting.append(line.encode("utf-8", "backslashreplace") + b"\n")
        while self._waiting:
            self._append(self._waiting[0])
            self._waiting.popleft()

    def close(self) -> None:
        """End; what still waits is lost."""
        os.close(self._descriptor)

    def _append(self, line: bytes) -> None:
        """Write a line; a part of one is taken back."""
        begin = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError:
            os.ftruncate(self._descriptor, begin)
            raise
