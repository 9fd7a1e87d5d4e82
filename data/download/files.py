"""Getting one large file, with a bar that counts megabytes."""

import threading
from contextlib import ExitStack
from pathlib import Path

import requests
from rich.console import Console

from data.download.checks import Check
from data.download.fetching import fetch
from data.download.images import Manners
from data.download.rate import Rate
from data.download.reachable import check_reachable
from data.download.receiving import Connection
from retinanet.progress import Advance, progress


def fetch_file(
    url: str, path: Path, *, check: Check, limit: int, manners: Manners, console: Console
) -> None:
    """Get a file unless it is there; goes on from what an earlier call left of it.

    `limit` is the most bytes that it can have.

    Raises FetchError if it cannot be had, and InputError if its server cannot be reached.
    """
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    check_reachable(url, timeout=manners.timeout)
    with requests.Session() as session, ExitStack() as stack:
        bar = MegabyteBar(path.name, console=console, stack=stack)
        fetch(
            url,
            path,
            check=check,
            limit=limit,
            connection=Connection(session, manners.timeout, threading.Event()),
            patience=manners.patience,
            resume=True,
            received=bar.received,
            retried=bar.retried,
        )


class MegabyteBar:
    """A bar that begins when the server has said how long the file is."""

    def __init__(self, name: str, *, console: Console, stack: ExitStack) -> None:
        """Show the file as `name`; the bar ends with `stack`."""
        self._name, self._console, self._stack = name, console, stack
        self._rate = Rate()
        self._advance: Advance | None = None

    def received(self, size: int, total: int) -> None:
        """Show how much is there: `size` of `total` bytes, 0 for an unknown total."""
        if not total:
            return
        megabytes, rest = size // 1_000_000, total - size
        if self._advance is None:
            self._advance = self._stack.enter_context(
                progress(
                    self._console,
                    f"{self._name}, MB",
                    total=megabytes_of(total),
                    start=megabytes,
                )
            )
            return
        done = megabytes if rest else megabytes_of(total)
        self._advance(done, self._rate.note(size))

    def retried(self, reason: str, pause: float) -> None:
        """Say why nothing happens."""
        self._console.print(
            f"{self._name}: {reason}; again in {pause:.1f} s", soft_wrap=True, markup=False
        )


def megabytes_of(size: int) -> int:
    """Bytes in whole megabytes, rounded up, so that a small file is not 0 of 0."""
    return -(-size // 1_000_000)
