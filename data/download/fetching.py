"""Getting one file: attempts with pauses between them, and a name only for what was checked.

TODO-DOC Is what has arrived the file that was asked for? Each check raises AttemptError if not.

TODO-DOC Is there anybody? Asked once, before thousands of files are asked for in vain.
"""

import csv
import io
import random
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import requests
from PIL import Image

from common.errors import InputError
from data.decoding import DAMAGE, has_end_of_image
from data.download.http import (
    AttemptError,
    Connection,
    FetchError,
    Part,
    Received,
    StoppedError,
    is_unreachable,
    reason_of,
    receive,
)

LONGEST_PAUSE = 30.0
"""Between two attempts, unless the server asks for more. [s]"""


class RetryPolicy(NamedTuple):
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


class Check(Protocol):
    """Looks at a file that has arrived."""

    def __call__(self, path: Path, /) -> None:
        """Raises AttemptError if it will not do."""


def fetch(
    url: str,
    path: Path,
    *,
    check: Check,
    limit: int,
    connection: Connection,
    patience: RetryPolicy,
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


PNG_END = b"IEND\xaeB`\x82"

LONGEST_LINE = 4096


def check_image(path: Path) -> None:
    """A JPEG or PNG that decodes to its very end, whatever the server calls it."""
    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            # An eighth of the size reads every byte of a JPEG and costs half of the time.
            image.draft(image.mode, (1, 1))
            image.load()
    except Image.UnidentifiedImageError as error:
        raise AttemptError(f"what came is no image: {shown(content)}") from error
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise AttemptError(f"damaged image: {' '.join(str(error).split())}") from error
    # Pillow makes do without the end marker if all pixels are there; other decoders do not.
    if not has_end(content):
        raise AttemptError("damaged image: its end is missing")


def has_end(content: bytes) -> bool:
    """Whether the image's end marker follows its pixels; some files have padding after it."""
    if content.startswith(b"\x89PNG"):
        return PNG_END in content
    return has_end_of_image(content)


def zip_with(members: Iterable[str], *, limit: int) -> Check:
    """A check for a zip that has these members, with the checksums that it gives for them.

    `limit` is the most bytes that a member can have, inflated.
    """
    return partial(_check_zip, members=tuple(members), limit=limit)


def _check_zip(path: Path, *, members: tuple[str, ...], limit: int) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            for name in members:
                # What is read ends at this size, whatever the compressed bytes would give.
                size = archive.getinfo(name).file_size
                if size > limit:
                    raise AttemptError(
                        f"not the zip asked for: {name} has {size:,} bytes inflated, more than "
                        f"the {limit:,} expected"
                    )
                with archive.open(name) as member:
                    while member.read(1 << 20):
                        pass
    except KeyError as error:
        raise AttemptError(f"not the zip asked for: {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise AttemptError(f"damaged zip: {error}") from error


def csv_with(columns: Iterable[str]) -> Check:
    """A check for a CSV file whose header has these columns and whose last line is whole."""
    return partial(_check_csv, columns=tuple(columns))


def _check_csv(path: Path, *, columns: tuple[str, ...]) -> None:
    first, last = end_lines(path)
    missing = [name for name in columns if name not in first]
    if missing:
        raise AttemptError(f"not the CSV asked for: no column {missing[0]} in {first[:4]}")
    if len(last) != len(first):
        raise AttemptError("the CSV ends in the middle of a line")


def check_class_descriptions(path: Path) -> None:
    """OpenImages' labels and names of classes: `/m/011k07,Tortoise`, with or without a header."""
    first, last = end_lines(path)
    if len(first) != 2 or not (first[0].startswith("/") or first[0] == "LabelName"):
        raise AttemptError(f"not the CSV asked for: it begins with {first[:4]}")
    if len(last) != 2:
        raise AttemptError("the CSV ends in the middle of a line")


def end_lines(path: Path) -> tuple[list[str], list[str]]:
    """The fields of a CSV file's first and last line; the file may be of gigabytes."""
    with path.open("rb") as file:
        first = file.readline(LONGEST_LINE)
        file.seek(-min(LONGEST_LINE, path.stat().st_size), io.SEEK_END)
        last = file.read().splitlines()[-1:]
    lines = [line.decode("utf-8-sig", "replace") for line in (first, *last)]
    fields = list(csv.reader(lines)) or [[]]
    return fields[0], fields[-1]


def shown(content: bytes) -> str:
    """The beginning of some bytes, for a message."""
    return repr(content[:40].decode("ascii", "replace").strip())


PAUSES = (1.0, 2.0, 0.0)
"""After each attempt. [s]"""


def check_reachable(url: str, *, timeout: float) -> None:
    """Let any answer pass, a refusal too: there is somebody.

    Raises InputError naming the server if there was no connection in three attempts.
    """
    reason = ""
    for pause in PAUSES:
        try:
            requests.head(url, timeout=timeout).close()
        except requests.RequestException as error:
            if not is_unreachable(error):
                return  # fetching will see, and say, what it is
            reason = reason_of(error)
            time.sleep(pause)
        else:
            return
    parts = urlsplit(url)
    raise InputError(
        f"{parts.scheme}://{parts.netloc} cannot be reached: {reason}; check the network and the "
        "proxy (HTTPS_PROXY), or name another server with --mirror"
    )
