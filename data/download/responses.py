"""What a server's answer says, before any of its body is believed."""

import re
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import requests
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from data.download.failures import AttemptError, FetchError, MissingFileError

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
