"""Fetch very many image files by threads, or one large file with a bar.

Each thread has its own connection. An image gets its name once it is complete and can be decoded,
so that the names in a folder are those of finished downloads.
"""

import argparse
import io
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
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
    check_reachable,
    fetch,
)

LARGEST_IMAGE = 100_000_000
"""The servers' copies have less than 3 MB; cameras' originals on a mirror less than 30. [B]"""
FAILURES_IN_A_ROW = 100
"""After so many failed downloads in a row, the server or the network must be at fault."""
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
    names = [name for name in images.names if name not in present]
    if not names:
        console.print(f"{images.title}: all {len(images.names)} are already downloaded")
        return {}
    total, stop, retries, own = len(images.names), threading.Event(), list[str](), threading.local()

    def fetch_one(name: str) -> Outcome:
        if not hasattr(own, "session"):  # requests does not promise that threads can share one
            own.session = requests.Session()
        try:
            size = fetch(
                f"{images.url}/{quote(name)}",
                images.folder / name,
                check=check_image,
                limit=LARGEST_IMAGE,
                connection=Connection(own.session, options, stop),
                retried=lambda reason, pause: retries.append(reason),
            )
        except FetchError as failure:
            return Outcome(name, reason=str(failure))
        return Outcome(name, size)

    # Its threads are daemons: one that blocks in a connection ends with the process.
    pool = ThreadPool(min(options.workers, len(names)))
    try:
        with progress(console, images.title, total=total, start=total - len(names)) as advance:
            outcomes = pool.imap_unordered(fetch_one, names)
            failed = _follow(outcomes, retries, advance, start=total - len(names))
    finally:
        stop.set()
        pool.terminate()
    return {name: failed[name] for name in images.names if name in failed}


class Outcome(NamedTuple):
    """An image that was fetched, or failed."""

    name: str
    size: int = 0  # bytes
    reason: str = ""  # of a failure


def _follow(
    outcomes: Iterable[Outcome], retries: Sequence[str], advance: Advance, *, start: int
) -> dict[str, str]:
    """Show the progress of the threads until all images are done; return why some failed."""
    failed: dict[str, str] = {}
    rate, size, in_a_row = Rate(), 0, 0
    rate.note(0)
    for done, outcome in enumerate(outcomes, start + 1):
        size += outcome.size
        in_a_row = in_a_row + 1 if outcome.reason else 0
        failed |= {outcome.name: outcome.reason} if outcome.reason else {}
        if in_a_row >= FAILURES_IN_A_ROW:
            raise FetchError(
                f"{in_a_row} images in a row could not be downloaded; the last: {outcome.reason}"
            )
        missing = f", {len(failed)} missing" if failed else ""
        retry = f", {len(retries)} retries ({retries[-1]})" if retries else ""
        advance(done, f"{rate.note(size)}{missing}{retry}")
    return failed


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
