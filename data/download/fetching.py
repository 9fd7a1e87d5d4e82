"""Getting one file: attempts with pauses between them, and a name only for what was checked."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from data.download.checks import Check
from data.download.failures import AttemptError, FetchError, StoppedError
from data.download.receiving import Connection, Part, Received, receive

LONGEST_PAUSE = 30.0
"""Between two attempts, unless the server asks for more. [s]"""


class Patience(NamedTuple):
    """How often a file is asked for, and how long the pauses are."""

    attempts: int = 8
    first_pause: float = 0.5
    """Doubled after each further failure, up to `LONGEST_PAUSE`. [s]"""

    def pause(self, failures: int) -> float:
        """How long to wait after so many failures. [s]

        Between half of it and all of it, so that not all threads come back at once.
        """
        longest = min(self.first_pause * 2.0 ** (failures - 1), LONGEST_PAUSE)
        return longest * random.uniform(0.5, 1.0)


Retried = Callable[[str, float], None]
"""Called as `retried(reason, pause)` before each pause. [s]"""


def fetch(
    url: str,
    path: Path,
    *,
    check: Check,
    limit: int,
    connection: Connection,
    patience: Patience,
    resume: bool = False,
    received: Received = lambda size, total: None,
    retried: Retried = lambda reason, pause: None,
) -> int:
    """Get a file; `path` comes into being when all of it is there and passes the check.

    Meanwhile it is `path` with `.part` added. An attempt that gets further than any before it
    starts the count of attempts anew: a long file over a bad line arrives in the end.

    Args:
        url: Where it is.
        path: Where it goes; replaced if there.
        check: Raises AttemptError for a file that is not what was asked for.
        limit: The most bytes that such a file can have: a server that sends more is refused.
        connection: What to ask with.
        patience: How often and how soon.
        resume: Go on from a part that is there, from this call or an earlier one. For files worth
            it; without it a failed attempt leaves nothing behind.
        received: Told how much of the file is there.
        retried: Told before each pause.

    Returns:
        The file's length in bytes.

    Raises:
        FetchError: It could not be had; MissingFileError if the server has no such file.
        StoppedError: The command is ending.
    """
    part = Part.of(path)
    failures, furthest = 0, 0
    while True:
        try:
            receive(url, part, limit=limit, connection=connection, resume=resume, received=received)
            return _finish(part, path, check)
        except AttemptError as failure:
            size = part.path.stat().st_size if part.path.is_file() else 0
            if not (resume and failure.keep_part):
                part.discard()
            failures = 1 if resume and furthest < size and failure.keep_part else failures + 1
            furthest = max(furthest, size)
            if failures >= patience.attempts:
                raise FetchError(f"{url}: {failure}; tried {failures} times") from failure
            pause = max(failure.wait, patience.pause(failures))
            retried(str(failure), pause)
            _wait(pause, stop=connection.stop)
        except (FetchError, StoppedError):
            if not resume:
                part.discard()
            raise


def _finish(part: Part, path: Path, check: Check) -> int:
    check(part.path)
    size = part.path.stat().st_size
    part.version.unlink(missing_ok=True)
    part.path.replace(path)
    return size


def _wait(pause: float, *, stop: threading.Event) -> None:
    if stop.wait(pause):
        raise StoppedError
