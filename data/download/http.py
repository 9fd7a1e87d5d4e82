"""Fetch one file over HTTP: attempts with pauses, and a final name only for a checked file.

A file is written to `NAME.part` and renamed when all of it is there and passes a check. A part can
be continued if the server still has the same version, which `NAME.part.version` stores (ETag or
Last-Modified, for If-Range).
"""

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from io import BufferedRandom
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import requests
from urllib3 import Retry
from urllib3.exceptions import InvalidHeader

from common.cli import positive, positive_number
from common.errors import InputError, one_line
from common.files import create_anew, put_in_place, replacing, updated_descriptor
from common.options import option

CHUNK = 1 << 16
LONGEST_PAUSE = 30.0  # between two attempts, unless Retry-After requires more. [s]
LONGEST_WAIT = 300.0  # upper limit for Retry-After. [s]
PAUSES = (1.0, 2.0, 0.0)  # after each attempt to reach a server. [s]
PART_SUFFIX = ".part"
MISSING = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
"""S3 responds 403 for an object that does not exist, where listing is not allowed."""
TEMPORARY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
ACCEPTED = {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE}
LONGEST_LENGTH = 19  # digits of a number of bytes; int() refuses more than 4,300
SHOWN = 80  # characters of a header in a message

Check = Callable[[Path], None]
"""Raises AttemptError for a received file that is not the expected one."""
Received = Callable[[int, int], None]
"""Called as `received(bytes, total)`: how much of the file is there; total 0 if unknown."""
Retried = Callable[[str, float], None]  # called as `retried(reason, pause)` before each pause. [s]


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """The options of requests."""

    workers: int = option("images downloaded at a time", default=16, parse=positive, metavar="N")
    attempts: int = option("attempts per file", default=8, parse=positive, metavar="N")
    first_pause: float = option(
        "wait after the first failure, doubled after each further one up to 30 seconds, or as long "
        "as Retry-After requires",
        name="--pause",
        default=0.5,
        parse=positive_number,
        metavar="SECONDS",
    )
    timeout: float = option(
        "limit for each answer", default=30.0, parse=positive_number, metavar="SECONDS"
    )

    def pause(self, failures: int) -> float:
        """Return the pause after a number of failures, randomized to spread the threads. [s]"""
        longest = min(self.first_pause * 2.0 ** (failures - 1), LONGEST_PAUSE)
        return longest * random.uniform(0.5, 1.0)


class Connection(NamedTuple):
    """A thread's connection; `stop` is set when the command is ending."""

    session: requests.Session
    options: HttpOptions
    stop: threading.Event


class Part(NamedTuple):
    """A file that is not complete, and the file that notes its version."""

    path: Path
    version: Path

    @classmethod
    def of(cls, path: Path) -> "Part":
        """Return the part of a file that will be `path`, in the same folder."""
        name = path.name + PART_SUFFIX
        return cls(path.with_name(name), path.with_name(name + ".version"))

    def size(self) -> int:
        """Return how many bytes have arrived."""
        is_file = self.path.is_file() and not self.path.is_symlink()
        return self.path.stat().st_size if is_file else 0

    def discard(self) -> None:
        """Remove what has arrived."""
        self.path.unlink(missing_ok=True)
        self.version.unlink(missing_ok=True)


class AttemptError(Exception):
    """An attempt failed; the next one may succeed.

    The reason is made one printable line, as it may quote a server. `wait` is the server's
    Retry-After [s], `keep_part` whether the received bytes can be continued.
    """

    def __init__(self, reason: str, *, wait: float = 0.0, keep_part: bool = False) -> None:
        super().__init__(one_line(reason))
        self.wait = wait
        self.keep_part = keep_part


class FetchError(Exception):
    """All attempts failed, or the server refused; one printable line with the address."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))


class MissingFileError(FetchError):
    """The server does not have the file."""


class StoppedError(Exception):
    """The command is ending; nothing is wrong with the file."""


def fetch(
    url: str,
    path: Path,
    *,
    check: Check,
    limit: int,
    connection: Connection,
    resume: bool = False,
    received: Received = lambda size, total: None,
    retried: Retried = lambda reason, pause: None,
) -> int:
    """Fetch a file and return its length in bytes; `path` appears, or is replaced, at the end.

    An attempt that gets further than any before it resets the count of attempts, so that a long
    file over a bad connection arrives in the end. More than `limit` bytes are refused. `resume`
    continues a part of this call or an earlier one; without it a failed attempt leaves nothing.

    Raises:
        FetchError: The download failed; MissingFileError if the server has no such file.
        StoppedError: The command is ending.
    """
    part = Part.of(path)
    failures, furthest = 0, 0
    while True:
        try:
            receive(url, part, limit=limit, connection=connection, resume=resume, received=received)
            check(part.path)
        except AttemptError as failure:
            size = part.size()
            if not (resume and failure.keep_part):
                part.discard()
            failures = 1 if resume and furthest < size and failure.keep_part else failures + 1
            furthest = max(furthest, size)
            if failures >= connection.options.attempts:
                raise FetchError(f"{url}: {failure}; tried {failures} times") from failure
            pause = max(failure.wait, connection.options.pause(failures))
            retried(str(failure), pause)
            if connection.stop.wait(pause):
                raise StoppedError from None
        except (FetchError, StoppedError):
            if not resume:
                part.discard()
            raise
        else:
            size = part.size()
            part.version.unlink(missing_ok=True)
            # Images are many, and are fetched again if one is lost: see `replacing`.
            put_in_place(part.path, path, flush=resume)
            return size


def receive(
    url: str, part: Part, *, limit: int, connection: Connection, resume: bool, received: Received
) -> None:
    """Request a file, or what is missing of it, and write it to `part.path`; raises as `fetch`."""
    offset = part.size() if resume and part.version.is_file() else 0
    # Not gzip, requests' default: lengths and ranges would be those of compressed bytes.
    headers = {"Accept-Encoding": "identity"}
    # If the file has changed, If-Range makes the server send all of it, with status 200 (RFC 9110).
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": part.version.read_text("latin-1")}
    try:
        with connection.session.get(
            url,
            headers=headers,
            stream=True,
            timeout=connection.options.timeout,
            hooks={"response": drop_redirection_body},
        ) as response:
            check_status(response, url=url)
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if response.headers.get("Content-Range") == f"bytes */{offset}":
                    return  # an earlier call ended between the last byte and the rename
                raise AttemptError("the file on the server is not longer than the part")
            start, total = extent(response, offset=offset)
            if total > limit:
                raise FetchError(f"{url}: {total:,} bytes, more than the limit of {limit:,}")
            with continued(part.path, start) if start else create_anew(part.path) as file:
                if resume and not start:
                    # The old part is gone: its bytes must not count as this version.
                    note_version(part, response)
                size = start
                received(size, total)
                # urllib3 compares lengths with the header, and reads chunks to their end.
                for chunk in response.iter_content(CHUNK):
                    if connection.stop.is_set():
                        raise StoppedError
                    size += len(chunk)
                    if size > limit:  # only a chunked body can be: its length was not known
                        part.discard()
                        raise FetchError(f"{url}: more than the limit of {limit:,} bytes")
                    file.write(chunk)
                    received(size, total)
    except (
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
    ) as error:
        raise AttemptError(describe_error(error), keep_part=True) from error
    except (requests.RequestException, ValueError) as error:  # also headers that cannot be read
        raise FetchError(f"{url}: invalid response: {error}") from error


def extent(response: requests.Response, *, offset: int) -> tuple[int, int]:
    """Return the place of the body's first byte in the file, and the file's length, 0 if unknown.

    Raises AttemptError for another range than that from `offset` on, and where a body that was cut
    off could not be recognized.
    """
    headers = response.headers
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise AttemptError("the server compressed the file, which was not requested")
    start = 0
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        place, start = headers.get("Content-Range", ""), offset
        if not (offset and place.startswith(f"bytes {offset}-")):
            raise AttemptError(f"the server sent {place[:SHOWN]!r}, requested from {offset}")
    if "chunked" in headers.get("Transfer-Encoding", "").lower():
        return start, 0
    length = headers.get("Content-Length", "")
    if not (length.isdecimal() and len(length) < LONGEST_LENGTH):
        raise AttemptError("the response has no valid Content-Length")
    return start, start + int(length)


def continued(path: Path, start: int) -> BufferedRandom:
    """Return a stream to write a file from position `start` on."""
    file = os.fdopen(updated_descriptor(path), "r+b")
    file.seek(start)
    return file


def note_version(part: Part, response: requests.Response) -> None:
    """Store the identity of the file's version beside the part, if the server sends one."""
    part.version.unlink(missing_ok=True)
    if version := response_version(response):
        with replacing(part.version) as noted:
            noted.write(version.encode("latin-1"))


def response_version(response: requests.Response) -> str:
    """Return the identity of this version of the file, for If-Range; empty if there is none."""
    tag = response.headers.get("ETag", "")  # a weak tag, W/"…", is no identity
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def check_status(response: requests.Response, *, url: str) -> None:
    """Accept 200, 206 and 416; refuse a redirection from HTTPS to plain HTTP.

    A busy or broken server (408, 425, 429, 5xx) is an AttemptError with its Retry-After.
    """
    status = response.status_code
    answer = f"{status} {(response.reason or '')[:SHOWN]}".rstrip()
    # Every hop counts: a plain one could send the rest of the chain anywhere.
    hops = [hop.url for hop in (*response.history, response)]
    plain = next((hop for hop in hops if not hop.startswith("https:")), None)
    if url.startswith("https:") and plain is not None:
        raise FetchError(f"{url}: redirected to {plain}, which is not HTTPS")
    if status in MISSING:
        raise MissingFileError(f"{url}: {answer}")
    if status in TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise AttemptError(answer, wait=seconds_to_wait(response), keep_part=True)
    if status not in ACCEPTED:
        raise FetchError(f"{url}: {answer}")


def seconds_to_wait(response: requests.Response) -> float:
    """Return Retry-After, given as seconds or a date; 0 if it is missing or invalid."""
    try:
        seconds = Retry().parse_retry_after(response.headers.get("Retry-After", ""))
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0
    return min(seconds, LONGEST_WAIT)


def drop_redirection_body(response: requests.Response, **options: object) -> None:
    """Close a redirection before requests reads its body into memory, decompressed."""
    if response.is_redirect:
        response.close()


def describe_error(error: BaseException | None) -> str:
    """Return the system's reason, which requests and urllib3 wrap several times."""
    text = str(error)
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        error = error.__cause__ or error.__context__
    return "timed out" if "timed out" in text else "connection lost"


def check_reachable(url: str, *, timeout: float) -> None:
    """Raise InputError naming the server if three attempts get no answer of any kind."""
    reason = ""
    for pause in PAUSES:
        try:
            # HEAD: a wrong name or proxy is reported in seconds, not after all attempts of `fetch`.
            requests.head(url, timeout=timeout).close()
        except requests.ConnectionError as error:  # no such name, server, trust or proxy; or lost
            reason = describe_error(error)
            time.sleep(pause)
        except requests.RequestException:
            return  # the server responds; fetching will report the error
        else:
            return
    parts = urlsplit(url)
    raise InputError(
        f"{parts.scheme}://{parts.netloc} cannot be reached: {reason}; check the network and the "
        "proxy (HTTPS_PROXY), or set another server with --mirror"
    )
