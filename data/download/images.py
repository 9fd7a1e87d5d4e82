"""Fetch very many image files by threads, or one large file with a bar.

The threads share one list of names; each has its own connection. An image gets its name once it
is complete and can be decoded, so that the names in a folder are those of finished downloads.
"""

import argparse
import io
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NamedTuple
from urllib.parse import quote, urlsplit

import requests
from PIL import Image
from rich.console import Console

from common.cli import positive
from common.console import Advance, Rate, progress
from common.errors import printable
from common.files import write_atomically
from common.options import argument, included, option
from data.annotations import SPLITS, SplitName
from data.decoding import DAMAGE, has_end_of_image
from data.download.http import (
    PART_SUFFIX,
    AttemptError,
    Check,
    Connection,
    FetchError,
    HttpOptions,
    StoppedError,
    check_reachable,
    fetch,
)

LARGEST_IMAGE = 100_000_000
"""The servers' copies have less than 3 MB; cameras' originals on a mirror less than 30. [B]"""
FAILURES_IN_A_ROW = 100
"""After so many failed downloads in a row, the server or the network must be at fault."""
SECONDS_TO_STOP = 2.0
"""Threads that block in a connection for longer end with the process."""
PNG_END = b"IEND\xaeB`\x82"
MISSING_LIST = "missing.txt"


def mirror_url(text: str) -> str:
    """Parse the address of a server; return it without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query:
        raise argparse.ArgumentTypeError(
            f"expected an address such as https://host, found {text!r}"
        )
    return text.rstrip("/")


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """The options of `retinanet data download`."""

    dataset: Literal["coco", "openimages"] = argument("which data set", metavar="{coco,openimages}")
    out: Path = option("target folder; created if missing", metavar="DIR")
    splits: list[SplitName] = option(
        "train, validation (default: both)",
        default=SPLITS,
        nargs="+",
        choices=SPLITS,
        metavar="SPLIT",
    )
    limit: int | None = option(
        "only the first N images of each split, by name; a larger N later adds to them",
        default=None,
        parse=positive,
        metavar="N",
    )
    classes: list[str] = option(
        "only images with a box of these classes: names, a .txt file with one name per line, "
        "`all`, or for openimages `mlperf` (default: coco all, openimages mlperf)",
        default=(),
        nargs="+",
        metavar="NAME",
    )
    mirror: str | None = option(
        "another server, with the files listed above", default=None, parse=mirror_url, metavar="URL"
    )
    http: HttpOptions = included(HttpOptions)


class Images(NamedTuple):
    """Images to download into one folder, and the address of their folder on the server."""

    title: str
    names: tuple[str, ...]
    folder: Path
    url: str


def fetch_images(
    images: Images, *, present: set[str], options: HttpOptions, console: Console
) -> dict[str, str]:
    """Fetch the images that are not among the `present` names, with a progress bar.

    Returns the reason for each image that could not be downloaded, in the order of `images.names`.

    Raises:
        FetchError: `FAILURES_IN_A_ROW` images in a row failed.
        OSError: A file could not be written.
    """
    remaining = deque(name for name in images.names if name not in present)
    if not remaining:
        console.print(f"{images.title}: all {len(images.names)} are already downloaded")
        return {}
    total, stop, outcomes = len(images.names), threading.Event(), SimpleQueue[Outcome]()
    start = total - len(remaining)
    threads = [
        threading.Thread(
            target=_work,
            args=(remaining, images, options, outcomes, stop),
            daemon=True,
            name=f"get {number}",
        )
        for number in range(min(options.workers, len(remaining)))
    ]
    for thread in threads:
        thread.start()
    try:
        with progress(console, images.title, total=total, start=start) as advance:
            failed = _follow(outcomes, advance, start=start, total=total)
    finally:
        stop.set()
        deadline = time.monotonic() + SECONDS_TO_STOP
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    return {name: failed[name] for name in images.names if name in failed}


class Outcome(NamedTuple):
    """What a thread tells: an image that was fetched or failed, a retry, or its own error."""

    name: str = ""  # of the image; empty for a retry
    size: int = 0  # bytes
    reason: str = ""  # of a failure or retry
    error: BaseException | None = None


def _follow(
    outcomes: "SimpleQueue[Outcome]", advance: Advance, *, start: int, total: int
) -> dict[str, str]:
    """Show the progress of the threads until all images are done; return why some failed."""
    failed: dict[str, str] = {}
    rate, done, size, in_a_row, retries, retry = Rate(), start, 0, 0, 0, ""
    rate.note(0)
    while done < total:
        outcome = outcomes.get()
        if outcome.error is not None:
            raise outcome.error
        if not outcome.name:
            retries += 1
            retry = f", {retries} retries ({outcome.reason})"
        else:
            done, size = done + 1, size + outcome.size
            in_a_row = in_a_row + 1 if outcome.reason else 0
            failed |= {outcome.name: outcome.reason} if outcome.reason else {}
        if in_a_row >= FAILURES_IN_A_ROW:
            raise FetchError(
                f"{in_a_row} images in a row could not be downloaded; the last: {outcome.reason}"
            )
        missing = f", {len(failed)} missing" if failed else ""
        advance(done, f"{rate.note(size)}{missing}{retry}")
    return failed


def _work(
    remaining: deque[str],
    images: Images,
    options: HttpOptions,
    outcomes: "SimpleQueue[Outcome]",
    stop: threading.Event,
) -> None:
    """Fetch images, one after the other, over a connection of this thread's own."""
    # requests does not promise that threads can share a Session.
    with requests.Session() as session:
        connection = Connection(session, options, stop)
        while not stop.is_set():
            try:
                # popleft of a deque is atomic: the threads need no lock.
                name = remaining.popleft()
            except IndexError:
                return
            try:
                size = fetch(
                    f"{images.url}/{quote(name)}",
                    images.folder / name,
                    check=check_image,
                    limit=LARGEST_IMAGE,
                    connection=connection,
                    retried=lambda reason, pause: outcomes.put(Outcome(reason=reason)),
                )
                outcomes.put(Outcome(name, size))
            except FetchError as failure:
                outcomes.put(Outcome(name, reason=str(failure)))
            except StoppedError:
                return
            except BaseException as error:  # raised again by the main thread
                outcomes.put(Outcome(error=error))
                return


def fetch_file(
    url: str, path: Path, *, check: Check, limit: int, options: HttpOptions, console: Console
) -> None:
    """Fetch a file of at most `limit` bytes unless it exists, or continue a partial download.

    Raises FetchError if that fails, and InputError if the server cannot be reached.
    """
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    check_reachable(url, timeout=options.timeout)
    with requests.Session() as session, ExitStack() as stack:
        rate = Rate()
        advance: Advance | None = None

        def received(size: int, total: int) -> None:
            """Show the progress; the bar starts once the file's length is known."""
            nonlocal advance
            # Rounded up in the end, so that a small file is not 0 of 0.
            megabytes, all_megabytes = size // 1_000_000, -(-total // 1_000_000)
            if total and advance is None:
                title = f"{path.name}, MB"
                bar = progress(console, title, total=all_megabytes, start=megabytes)
                advance = stack.enter_context(bar)
            elif total and advance is not None:
                advance(all_megabytes if size == total else megabytes, rate.note(size))

        def retried(reason: str, pause: float) -> None:
            text = f"{path.name}: {reason}; retry in {pause:.1f} s"
            console.print(text, soft_wrap=True, markup=False)

        fetch(
            url,
            path,
            check=check,
            limit=limit,
            connection=Connection(session, options, threading.Event()),
            resume=True,
            received=received,
            retried=retried,
        )


def check_image(path: Path) -> None:
    """Accept a JPEG or PNG that can be decoded completely, whatever its Content-Type."""
    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            # An eighth of the size reads every byte of a JPEG and costs half of the time.
            image.draft(image.mode, (1, 1))
            image.load()
    except Image.UnidentifiedImageError as error:
        beginning = content[:40].decode("ascii", "replace").strip()
        raise AttemptError(f"the response is not an image: {beginning!r}") from error
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise AttemptError(f"damaged image: {' '.join(str(error).split())}") from error
    # Pillow accepts a missing end marker if all pixels are there; other decoders do not. Padding
    # may come after it.
    is_png = content.startswith(b"\x89PNG")
    if not (PNG_END in content if is_png else has_end_of_image(content)):
        raise AttemptError("damaged image: its end is missing")


def tidy(folder: Path) -> set[str]:
    """Remove partial downloads from a folder, creating it if missing; return its file names."""
    folder.mkdir(parents=True, exist_ok=True)
    with os.scandir(folder) as entries:
        names = {entry.name for entry in entries}
    # Images are never continued (`resume` is for single large files), so their parts are useless.
    for name in [name for name in names if name.endswith(PART_SUFFIX)]:
        (folder / name).unlink()
        names.remove(name)
    return names


def write_missing_list(folder: Path, failed: Mapping[str, str]) -> None:
    """Write a line `file, tab, reason` for each failed image; no file if there is none."""
    path = folder / MISSING_LIST
    if not failed:
        path.unlink(missing_ok=True)
        return
    lines = [f"{printable(name)}\t{reason}\n" for name, reason in failed.items()]
    write_atomically(path, "".join(lines))
