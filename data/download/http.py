"""One attempt to get a file: ask, and write what comes beside where it will be.

TODO-DOC What a server's answer says, before any of its body is believed.

TODO-DOC How getting a file can end, other than well.

A reason may quote what a server sent, so that each is made one printable line.

TODO-DOC How fast bytes arrive.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import requests
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from common.errors import one_line

CHUNK = 1 << 16

Received = Callable[[int, int], None]
"""Called as `received(bytes, total)`: how much of the file is there; total 0 if unknown."""


class Connection(NamedTuple):
    """What a thread asks servers with."""

    session: requests.Session
    timeout: float
    """How long to wait for a connection, and for each next piece of an answer. [s]"""
    stop: threading.Event
    """Set when the command is ending."""


class Part(NamedTuple):
    """A file that is not complete, and where its version is written down."""

    path: Path
    version: Path

    @classmethod
    def of(cls, path: Path) -> "Part":
        """The part of a file that will be `path`, in the same folder."""
        name = path.name + PART_SUFFIX
        return cls(path.with_name(name), path.with_name(name + ".version"))

    def discard(self) -> None:
        """Remove what has arrived."""
        self.path.unlink(missing_ok=True)
        self.version.unlink(missing_ok=True)


PART_SUFFIX = ".part"


def receive(
    url: str, part: Part, *, limit: int, connection: Connection, resume: bool, received: Received
) -> None:
    """Ask for a file, or for what is missing of it, and write it to `part.path`.

    With `resume` a part is gone on with if the server still has the version that it is of.

    Raises:
        AttemptError: Nothing, less, more or something else came; `keep_part` says whether what is
            there can be gone on with.
        FetchError: The server refuses, or sends more than `limit` bytes; MissingFileError if it
            has no such file.
        StoppedError: The command is ending.
    """
    asked = _size(part.path) if resume and part.version.is_file() else 0
    headers = {"Accept-Encoding": "identity"}
    if asked:
        headers |= {"Range": f"bytes={asked}-", "If-Range": part.version.read_text("latin-1")}
    try:
        with connection.session.get(
            url,
            headers=headers,
            stream=True,
            timeout=connection.timeout,
            hooks={"response": drop_redirection_body},
        ) as response:
            check_status(response, url=url)
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if asked and complete_length(response) == asked:
                    return  # all of it was there already
                raise AttemptError("the server has no more of the file than is here")
            _write_body(
                response,
                part,
                asked=asked,
                limit=limit,
                resume=resume,
                received=received,
                stop=connection.stop,
            )
    except (
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
    ) as error:
        raise AttemptError(reason_of(error), keep_part=True) from error
    except requests.RequestException as error:
        raise FetchError(f"{url}: {error}") from error
    except ValueError as error:  # headers or chunks that http.client and urllib3 cannot read
        raise FetchError(f"{url}: the server's answer makes no sense: {error}") from error


def _write_body(
    response: requests.Response,
    part: Part,
    *,
    asked: int,
    limit: int,
    resume: bool,
    received: Received,
    stop: threading.Event,
) -> None:
    start, total = body_start(response, asked=asked), file_length(response)
    if total is not None and total > limit:
        raise FetchError(f"{response.url}: {total:,} bytes, more than the {limit:,} expected")
    size = start
    with part.path.open("ab" if start else "wb") as file:
        if resume and not start:
            # After the old part is gone: its bytes must never be taken for this version's.
            _write_version(part, version_of(response))
        received(size, total or 0)
        for chunk in response.iter_content(CHUNK):
            if stop.is_set():
                raise StoppedError
            size += len(chunk)
            if size > limit:  # only a chunked body can be: its length was not known
                part.discard()
                raise FetchError(f"{response.url}: more than the {limit:,} bytes expected")
            file.write(chunk)
            received(size, total or 0)
    if total is not None and size != total:
        raise AttemptError(f"{size} of {total} bytes came", keep_part=size < total)


def _write_version(part: Part, version: str) -> None:
    if version:
        part.version.write_text(version, "latin-1")
    else:
        part.version.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


MISSING = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
"""S3 answers 403 for an object that is not there, where listing is not allowed."""
TEMPORARY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
LONGEST_WAIT = 300.0
"""A server that asks for an hour is asked again after five minutes. [s]"""
LENGTH = r"\d{1,18}"
"""A number of bytes; int() refuses one of more than 4,300 digits."""
SHOWN_OF_A_HEADER = 80


def check_status(response: requests.Response, *, url: str) -> None:
    """Let 200, 206 and 416 pass.

    Raises:
        MissingFileError: There is no such file.
        AttemptError: The server is busy or broken (408, 425, 429, 5xx); honours Retry-After.
        FetchError: Any other refusal, or a redirection from HTTPS to plain HTTP.
    """
    status = response.status_code
    said = f"{status} {(response.reason or '')[:SHOWN_OF_A_HEADER]}".rstrip()
    if url.startswith("https:") and not response.url.startswith("https:"):
        raise FetchError(f"{url}: is sent on to {response.url}, which is not HTTPS")
    if status in MISSING:
        raise MissingFileError(f"{url}: {said}")
    if status in TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise AttemptError(said, wait=seconds_to_wait(response), keep_part=True)
    if status not in (
        HTTPStatus.OK,
        HTTPStatus.PARTIAL_CONTENT,
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    ):
        raise FetchError(f"{url}: {said}")


def seconds_to_wait(response: requests.Response) -> float:
    """Retry-After, as seconds or as a date; 0 where it is missing or makes no sense."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT)
    try:
        left = parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(left, 0.0), LONGEST_WAIT)


def drop_redirection_body(response: requests.Response, **options: object) -> None:
    """Close a redirection before requests reads its body into memory, decompressed.

    A hook of requests, called with each response before its redirection is followed.
    """
    if response.is_redirect:
        response.close()


def body_start(response: requests.Response, *, asked: int) -> int:
    """Which byte of the file the body begins with: the one asked for, or 0 for a whole file.

    Raises AttemptError if the range is another one than asked for.
    """
    if response.status_code == HTTPStatus.OK:
        return 0
    start, _ = content_range(response)
    if asked == 0 or start != asked:
        raise AttemptError(f"the server sent byte {start} and later, asked for {asked}")
    return start


def file_length(response: requests.Response) -> int | None:
    """The whole file's length in bytes; None if its end is marked in the body (chunked).

    Raises AttemptError where there would be no telling whether the body is complete.
    """
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise AttemptError("the server compressed the file, unasked")
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        return content_range(response)[1]
    if "chunked" in response.headers.get("Transfer-Encoding", "").lower():
        return None
    text = response.headers.get("Content-Length", "")
    if re.fullmatch(LENGTH, text, re.ASCII) is None:
        raise AttemptError("the server does not say how long the file is")
    return int(text)


def content_range(response: requests.Response) -> tuple[int, int]:
    """First byte and whole length, from `Content-Range: bytes 5-9/10`."""
    text = response.headers.get("Content-Range", "")
    found = re.fullmatch(rf"bytes ({LENGTH})-({LENGTH})/({LENGTH})", text.strip(), re.ASCII)
    if found is None or int(found[3]) - 1 != int(found[2]):
        shown = text[:SHOWN_OF_A_HEADER]
        raise AttemptError(f"the server sent a part of the file as {shown!r}")
    return int(found[1]), int(found[3])


def complete_length(response: requests.Response) -> int | None:
    """The whole length from a 416's `Content-Range: bytes */10`, if it says so."""
    text = response.headers.get("Content-Range", "")
    found = re.fullmatch(rf"bytes \*/({LENGTH})", text, re.ASCII)
    return int(found[1]) if found else None


def version_of(response: requests.Response) -> str:
    """What tells this version of the file from others: If-Range takes it back. Empty if nothing."""
    tag, date = (response.headers.get(name, "") for name in ("ETag", "Last-Modified"))
    version = tag if tag.startswith('"') and is_plain(tag) else date
    return version if is_plain(version) else ""


def is_plain(text: str) -> bool:
    """Return whether a header's text can be sent back as a header."""
    return text.isascii() and text.isprintable()


def reason_of(error: requests.RequestException) -> str:
    """What went wrong on the way, in a few words; requests' own text fills half a screen."""
    if isinstance(error, requests.ConnectTimeout):
        return "no connection in time"
    cause: BaseException | None = error
    reason = ""
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            reason = cause.strerror
        elif isinstance(cause, TimeoutError):
            reason = "no answer in time"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, requests.exceptions.ProxyError):
        return f"the proxy: {reason or 'no connection'}"
    if reason:
        return reason
    return "no answer in time" if "timed out" in str(error) else "the connection broke off"


def is_unreachable(error: requests.RequestException) -> bool:
    """Whether there was no connection at all: no such name, nobody there, no trust, no proxy."""
    if isinstance(
        error,
        requests.ConnectTimeout | requests.exceptions.SSLError | requests.exceptions.ProxyError,
    ):
        return True
    inner = error.args[0] if error.args else None
    return isinstance(getattr(inner, "reason", None), NewConnectionError | ConnectTimeoutError)


class AttemptError(Exception):
    """An attempt came to nothing that may go better next time."""

    def __init__(self, reason: str, *, wait: float = 0.0, keep_part: bool = False) -> None:
        """Say why, in one line.

        Args:
            reason: What to tell the user.
            wait: How long the server asks to be left alone. [s]
            keep_part: What has arrived is good, as far as it goes.
        """
        super().__init__(one_line(reason))
        self.wait = wait
        self.keep_part = keep_part


class FetchError(Exception):
    """All attempts came to nothing, or the server refuses for good. One line with the address."""

    def __init__(self, reason: str) -> None:
        """Take the reason and the address."""
        super().__init__(one_line(reason))


class MissingFileError(FetchError):
    """The server says that there is no such file."""


class StoppedError(Exception):
    """The command is ending; nothing is wrong with the file."""


SECONDS = 10.0
"""What the rate is the mean of."""


class Rate:
    """The rate of something that grows, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, size: int) -> str:
        """Say how fast it was lately, such as `12.3 MB/s`.

        Args:
            size: How much there is now. [bytes]
        """
        now = time.monotonic()
        if self._seen and size < self._seen[-1][1]:
            self._seen.clear()  # it began anew
        self._seen.append((now, size))
        while now - self._seen[0][0] > SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        return f"{(size - before) / max(now - then, 1e-3) / 1e6:.1f} MB/s"
