"""Getting very many small files at once, by threads that share one list of names."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import requests
from rich.console import Console

from data.download.checks import check_image
from data.download.failures import FetchError, StoppedError
from data.download.fetching import Patience, fetch
from data.download.rate import Rate
from data.download.receiving import Connection
from data.download.tally import Tally
from retinanet.progress import progress

LARGEST_IMAGE = 100_000_000
"""The servers' copies have less than 3 MB; cameras' originals on a mirror less than 30. [B]"""
FAILURES_IN_A_ROW = 100
"""So many images in a row that could not be had: the server or the network is at fault."""
SECONDS_TO_STOP = 2.0
"""Threads that hang in a connection for longer are left to end with the process."""


class Manners(NamedTuple):
    """How servers are asked."""

    workers: int = 16
    """Images that are asked for at a time."""
    timeout: float = 30.0
    """How long to wait for a connection, and for each next piece of an answer. [s]"""
    patience: Patience = Patience()


class Images(NamedTuple):
    """Images of one folder that are to be had."""

    title: str
    names: tuple[str, ...]
    """File names in `folder`."""
    folder: Path
    url_of: Callable[[str], str]
    """Where the image of a name is."""


def fetch_images(
    images: Images, *, present: set[str], manners: Manners, console: Console
) -> dict[str, str]:
    """Get the images that are not there yet, with a bar.

    Args:
        images: Which, from where, and where to.
        present: Names of those that are there, see `data.download.folder.tidy`.
        manners: How the server is asked.
        console: Where progress is shown.

    Returns:
        Images that could not be had: the reason by name, in the order of `images.names`.

    Raises:
        FetchError: `FAILURES_IN_A_ROW` images failed: it makes no sense to go on.
        OSError: A file could not be written.
    """
    wanted = deque(name for name in images.names if name not in present)
    if not wanted:
        console.print(f"{images.title}: all {len(images.names)} are there")
        return {}
    tally, stop = Tally(start=len(images.names) - len(wanted)), threading.Event()
    threads = [
        threading.Thread(
            target=_work, args=(wanted, images, manners, tally, stop), daemon=True, name=f"get {n}"
        )
        for n in range(min(manners.workers, len(wanted)))
    ]
    for thread in threads:
        thread.start()
    try:
        _watch(threads, tally, images=images, console=console)
    finally:
        stop.set()
        _join(threads)
    if tally.broken is not None:
        raise tally.broken
    return {name: tally.failed[name] for name in images.names if name in tally.failed}


def _watch(
    threads: Iterable[threading.Thread], tally: Tally, *, images: Images, console: Console
) -> None:
    """Show how far the threads are until they have ended, or should."""
    rate, total = Rate(), len(images.names)
    rate.note(0)
    with progress(console, images.title, total=total, start=tally.start) as advance:
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(0.25)
            if tally.broken is not None:
                return
            if tally.failures_in_a_row >= FAILURES_IN_A_ROW:
                last = next(reversed(tally.failed.values()))
                raise FetchError(
                    f"{tally.failures_in_a_row} images in a row could not be had; the last: {last}"
                )
            if tally.start < tally.done < total or tally.retries:
                advance(tally.done, f"{rate.note(tally.bytes)}{tally.note()}")
        advance(tally.done, f"{rate.note(tally.bytes)}{tally.note()}")


def _work(
    wanted: deque[str], images: Images, manners: Manners, tally: Tally, stop: threading.Event
) -> None:
    """What a thread does: images, one after the other, over a connection of its own."""
    with requests.Session() as session:
        connection = Connection(session, manners.timeout, stop)
        while not stop.is_set():
            try:
                name = wanted.popleft()
            except IndexError:
                return
            try:
                size = fetch(
                    images.url_of(name),
                    images.folder / name,
                    check=check_image,
                    limit=LARGEST_IMAGE,
                    connection=connection,
                    patience=manners.patience,
                    retried=tally.add_retry,
                )
            except FetchError as failure:
                tally.add_failure(name, str(failure))
            except StoppedError:
                return
            except BaseException as error:  # whatever it is, the main thread must hear of it
                tally.broken = error
                return
            else:
                tally.add_image(size)


def _join(threads: Iterable[threading.Thread]) -> None:
    deadline = time.monotonic() + SECONDS_TO_STOP
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
