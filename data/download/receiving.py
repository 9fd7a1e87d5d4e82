"""One attempt to get a file: ask, and write what comes beside where it will be."""

import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import requests

from data.download.failures import AttemptError, FetchError, StoppedError
from data.download.responses import (
    body_start,
    check_status,
    complete_length,
    drop_redirection_body,
    file_length,
    reason_of,
    version_of,
)

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
