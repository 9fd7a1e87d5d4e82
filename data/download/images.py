"""Getting very many small files at once, by threads that share one list of names.

TODO-DOC What threads have done so far, counted together.

TODO-DOC Getting one large file, with a bar that counts megabytes.

TODO-DOC The folder that a data set is downloaded to: whose it is, what is in it, whether it fits.

TODO-DOC What a user asks to download.
"""

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import requests
from rich.console import Console

from common.console import Advance, progress
from common.errors import InputError, printable
from common.locks import FileLock, LockHeldError
from data.download.fetching import Check, RetryPolicy, check_image, check_reachable, fetch
from data.download.http import PART_SUFFIX, Connection, FetchError, Rate, StoppedError
from data.sources import SplitName

LARGEST_IMAGE = 100_000_000
"""The servers' copies have less than 3 MB; cameras' originals on a mirror less than 30. [B]"""
FAILURES_IN_A_ROW = 100
"""So many images in a row that could not be had: the server or the network is at fault."""
SECONDS_TO_STOP = 2.0
"""Threads that hang in a connection for longer are left to end with the process."""


class HttpOptions(NamedTuple):
    """How servers are asked."""

    workers: int = 16
    """Images that are asked for at a time."""
    timeout: float = 30.0
    """How long to wait for a connection, and for each next piece of an answer. [s]"""
    patience: RetryPolicy = RetryPolicy()


class Images(NamedTuple):
    """Images of one folder that are to be had."""

    title: str
    names: tuple[str, ...]
    """File names in `folder`."""
    folder: Path
    url_of: Callable[[str], str]
    """Where the image of a name is."""


def fetch_images(
    images: Images, *, present: set[str], manners: HttpOptions, console: Console
) -> dict[str, str]:
    """Get the images that are not there yet, with a bar.

    Args:
        images: Which, from where, and where to.
        present: Names of those that are there, see `data.download.images.tidy`.
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
    tally, stop = ProgressCounter(start=len(images.names) - len(wanted)), threading.Event()
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


class ProgressCounter:
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


def _watch(
    threads: Iterable[threading.Thread], tally: ProgressCounter, *, images: Images, console: Console
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
    wanted: deque[str],
    images: Images,
    manners: HttpOptions,
    tally: ProgressCounter,
    stop: threading.Event,
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


def fetch_file(
    url: str, path: Path, *, check: Check, limit: int, manners: HttpOptions, console: Console
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


LOCK_FILE = ".download.lock"
MISSING_LIST = "missing.txt"


@contextmanager
def one_download(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and keep other downloads out of it while the context lasts.

    The lock ends with the process, however it ends; its empty file stays.
    Raises InputError if the folder cannot be written, or another download is at work in it.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out: {folder}: is a file; name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE)
        lock.take()
    except LockHeldError as error:
        raise InputError(
            f"--out: {folder}: another download is at work here; wait for it or end it"
        ) from error
    except OSError as error:
        raise InputError(
            f"--out: {folder}: {error.strerror}; name a folder that can be written"
        ) from error
    try:
        yield
    finally:
        lock.release()


def tidy(folder: Path) -> set[str]:
    """Names of the files in a folder, which is made if need be; parts of images are removed.

    Reads the names only: a file has its name because it was checked when it came.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with os.scandir(folder) as entries:
        names = {entry.name for entry in entries}
    for name in [name for name in names if name.endswith(PART_SUFFIX)]:
        (folder / name).unlink()
        names.remove(name)
    return names


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that has its name only when it is complete."""
    part = path.with_name(path.name + PART_SUFFIX)
    part.write_bytes(content)
    part.replace(path)


def write_missing_list(folder: Path, failed: Mapping[str, str]) -> None:
    """List what could not be had: a line `file, tab, reason` each. No file if there is nothing."""
    path = folder / MISSING_LIST
    if not failed:
        path.unlink(missing_ok=True)
        return
    lines = [f"{printable(name)}\t{reason}\n" for name, reason in failed.items()]
    write_atomically(path, "".join(lines).encode())


def check_space(folder: Path, *, images: int, bytes_each: int, console: Console) -> None:
    """Refuse what cannot fit, and say so if it will be close.

    Args:
        folder: Where images go.
        images: How many are still to come.
        bytes_each: How large one is on average; a mirror's may be smaller.
        console: Where the warning goes.

    Raises:
        InputError: Less than half of the space that is needed is free.
    """
    free, needed = shutil.disk_usage(folder).free, images * bytes_each
    if needed <= free:
        return
    text = (
        f"{folder}: {images} images take about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are "
        "free; free some, name another --out, or get fewer with --limit"
    )
    if free < needed / 2:
        raise InputError(f"--out: {text}")
    console.print(f"warning: {text}", soft_wrap=True)


class Request(NamedTuple):
    """Which part of a data set, from where, and where to."""

    out: Path
    splits: tuple[SplitName, ...]
    limit: int | None
    """Images of each split; None for all."""
    classes: tuple[str, ...]
    """Names of classes, or the one word `all` (or `mlperf`, for OpenImages)."""
    mirror: str | None
    """Address of a server that holds copies, without a slash at its end; None for the owners'."""
    manners: HttpOptions
