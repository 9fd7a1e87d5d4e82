"""Downloads of one file from a server with faults, and the checks of response headers."""

import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from common.errors import InputError
from data.download import http
from data.download.http import (
    LONGEST_WAIT,
    AttemptError,
    Check,
    Connection,
    FetchError,
    HttpOptions,
    MissingFileError,
    Part,
    StoppedError,
    check_reachable,
    check_status,
    extent,
    fetch,
    response_version,
    seconds_to_wait,
)
from data.download.images import check_image
from tests.data.download.samples import jpeg
from tests.data.download.server import FILE_FAULTS, IMAGE_FAULTS, Server, serving

IMAGE = jpeg(1)
LONG = bytes(range(256)) * 3000
GOOD = {"slow", "chunked", "whole_for_a_part"}


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    with serving({"/image.jpg": IMAGE, "/long": LONG}) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.requests.clear()
    shared_server.faults.clear()
    shared_server.fallback, shared_server.tag = (lambda path: "serve"), "1"
    return shared_server


def is_long(path: Path) -> None:
    if path.read_bytes() != LONG:
        raise AttemptError("another file")


class Client:
    """Downloads the server's image or long file into a folder, and records the retries."""

    def __init__(self, server: Server, folder: Path, session: requests.Session) -> None:
        options = HttpOptions(timeout=1.5, first_pause=0.001)
        self.url, self.folder = server.url, folder
        self.image, self.long = folder / "a.jpg", folder / "long"
        self.connection = Connection(session, options, threading.Event())
        self.retries: list[tuple[str, float]] = []

    def get(self, path: Path, check: Check, *, url: str, attempts: int, **options: Any) -> int:
        http_options = replace(self.connection.options, attempts=attempts)
        return fetch(
            self.url + url,
            path,
            check=check,
            connection=self.connection._replace(options=http_options),
            retried=lambda reason, pause: self.retries.append((reason, pause)),
            **({"limit": 1_000_000} | options),
        )

    def get_image(self, url: str = "/image.jpg", *, attempts: int = 4, resume: bool = False) -> int:
        return self.get(self.image, check_image, url=url, attempts=attempts, resume=resume)

    def get_long(self, *, attempts: int = 4) -> int:
        return self.get(self.long, is_long, url="/long", attempts=attempts, resume=True)


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Iterator[Client]:
    with requests.Session() as session:
        yield Client(server, tmp_path, session)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.slow] * (fault == "silent")) for fault in IMAGE_FAULTS],
)
def test_image_is_downloaded_after_faults(server: Server, client: Client, fault: str) -> None:
    server.faults["/image.jpg"] = [fault, fault]
    assert client.get_image() == len(IMAGE)
    assert client.image.read_bytes() == IMAGE
    assert list(client.folder.iterdir()) == [client.image]
    assert len(server.requests) == (1 if fault in GOOD else 3)


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_long_file_is_downloaded_after_faults(server: Server, client: Client, fault: str) -> None:
    """The second fault occurs in a resumed download."""
    server.faults["/long"] = [fault, "cut_off", fault, "cut_off"]
    client.get_long(attempts=8)
    assert client.long.read_bytes() == LONG
    assert list(client.folder.iterdir()) == [client.long]


def test_long_file_continues_where_it_was_cut_off(server: Server, client: Client) -> None:
    server.faults["/long"] = ["cut_off", "error_503", "cut_off"]
    client.get_long()
    starts = [int(request.range[len("bytes=") : -1] or 0) for request in server.requests]
    half, three_quarters = len(LONG) // 2, len(LONG) * 3 // 4
    chunk = 1 << 16
    assert starts[0] == 0 and half - chunk < starts[1] <= half and starts[2] == starts[1]
    assert three_quarters - chunk < starts[3] <= three_quarters
    assert {request.if_range for request in server.requests[1:]} == {'"1"'}


def test_part_of_an_earlier_call_is_continued(server: Server, client: Client) -> None:
    server.faults["/long"] = ["cut_off", "cut_off_whole"]
    with pytest.raises(FetchError):
        client.get_long(attempts=1)
    assert not client.long.exists() and Part.of(client.long).size() > len(LONG) // 2 - (1 << 16)
    server.faults["/long"] = []
    client.get_long()
    assert server.requests[-1].range.startswith("bytes=") and client.long.read_bytes() == LONG


def test_only_attempts_without_progress_are_counted(server: Server, client: Client) -> None:
    server.faults["/long"] = ["cut_off"] * 4
    client.get_long(attempts=2)
    assert len(server.requests) == 5
    client.long.unlink()
    server.fallback = lambda path: "cut_off_whole"
    with pytest.raises(FetchError, match="tried 3 times"):
        client.get_long(attempts=3)
    assert len(server.requests) <= 5 + 5


@pytest.mark.parametrize(
    ("part", "version", "ranges"),
    [
        (b"older" * 1000, '"0"', ["bytes=5000-"]),
        (b"older" * 1000, None, [""]),
        (LONG, '"1"', [f"bytes={len(LONG)}-"]),
        (b"?" * 1000, '"1"', ["bytes=1000-", ""]),
    ],
    ids=["another version", "unknown version", "complete", "damaged"],
)
def test_part_is_continued_only_if_it_fits(
    server: Server, client: Client, part: bytes, version: str | None, ranges: list[str]
) -> None:
    Part.of(client.long).path.write_bytes(part)
    if version:
        Part.of(client.long).version.write_text(version)
    client.get_long(attempts=2)
    assert [request.range for request in server.requests] == ranges
    assert client.long.read_bytes() == LONG


@pytest.mark.parametrize("resume", [True, False])
def test_missing_file_is_requested_once(server: Server, client: Client, resume: bool) -> None:
    with pytest.raises(MissingFileError, match=r"/none\.jpg: 404 Not Found"):
        client.get_image("/none.jpg", resume=resume)
    assert len(server.requests) == 1 and not list(client.folder.iterdir())


@pytest.mark.parametrize(
    ("fault", "requests_made", "match"),
    [
        ("unauthorized", 1, "401 Unauthorized"),
        ("html", 4, r"not an image: '<!DOCTYPE html>.*; tried 4 times$"),
    ],
)
def test_last_reason_is_reported_and_the_old_file_kept(
    server: Server, client: Client, fault: str, requests_made: int, match: str
) -> None:
    client.image.write_bytes(b"old")
    server.fallback = lambda path: fault
    with pytest.raises(FetchError, match=match):
        client.get_image()
    assert len(server.requests) == requests_made and client.image.read_bytes() == b"old"
    assert len(list(client.folder.iterdir())) == 1


@pytest.mark.slow
def test_retry_after_is_respected(server: Server, client: Client) -> None:
    server.faults["/image.jpg"] = ["wait_a_second"]
    began = time.monotonic()
    client.get_image()
    assert [pause for _, pause in client.retries] == [1.0] and 1.0 <= time.monotonic() - began < 3


def test_pauses_double_up_to_half_a_minute() -> None:
    options = HttpOptions(attempts=20, first_pause=0.5)
    for failures, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (20, 30.0)):
        assert longest / 2 <= options.pause(failures) <= longest


def test_stop_ends_a_pause(server: Server, client: Client) -> None:
    server.faults["/image.jpg"] = ["wait_a_second"]
    threading.Timer(0.1, client.connection.stop.set).start()
    began = time.monotonic()
    with pytest.raises(StoppedError):
        client.get_image()
    assert time.monotonic() - began < 1 and not list(client.folder.iterdir())


@pytest.mark.parametrize("resume", [False, True], ids=["an image", "a long file"])
@pytest.mark.parametrize("fault", ["chunks_without_end", "serve", "negative_chunk"])
def test_file_above_the_size_limit_is_refused(
    server: Server, client: Client, fault: str, resume: bool
) -> None:
    server.faults["/long"] = [fault]
    with pytest.raises(FetchError) as caught:
        client.get(client.long, check_image, url="/long", attempts=4, limit=700_000, resume=resume)
    assert len(server.requests) == 1 and "\n" not in str(caught.value)
    assert sum(path.stat().st_size for path in client.folder.iterdir()) == 0


def test_body_of_a_redirection_is_not_decompressed(server: Server, client: Client) -> None:
    server.faults["/image.jpg"] = ["sent_on_with_a_bomb"]
    tracemalloc.start()
    try:
        assert client.get_image() == len(IMAGE)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_reason_of_a_server_is_one_printable_line(server: Server, client: Client) -> None:
    server.faults["/image.jpg"] = ["control_characters"] * 4
    with pytest.raises(FetchError) as caught:
        client.get_image()
    assert len(client.retries) == 3
    for text in (*(reason for reason, _ in client.retries), str(caught.value)):
        assert "503" in text and text.isprintable() and len(text) < 300


def make_response(status: int = 200, url: str = "https://a/b", **headers: str) -> requests.Response:
    response = requests.Response()
    response.status_code, response.url = status, url
    response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return response


# Fixed dates: every pytest-xdist worker must collect the same names.
PAST, FUTURE = "Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7), ("86400", LONGEST_WAIT), (FUTURE, LONGEST_WAIT)]
    + [(text, 0) for text in ("-5", "soon", "", "1.5", PAST)],
)
def test_retry_after_header(text: str, seconds: float) -> None:
    assert seconds_to_wait(make_response(503, Retry_After=text)) == seconds


def test_redirection_from_https_to_http_is_refused() -> None:
    with pytest.raises(FetchError, match="not HTTPS"):
        check_status(make_response(url="http://elsewhere/b"), url="https://a/b")
    safe_end = make_response(url="https://elsewhere/b")
    check_status(safe_end, url="https://a/b")
    safe_end.history = [make_response(302), make_response(302, url="http://between/b")]
    with pytest.raises(FetchError, match="http://between/b"):
        check_status(safe_end, url="https://a/b")
    check_status(make_response(url="http://elsewhere/b"), url="http://a/b")


def test_part_begins_at_the_offset_and_ends_with_the_file() -> None:
    part = make_response(206, Content_Range="bytes 5-9/10", Content_Length="5")
    assert extent(part, offset=5) == (5, 10)
    part.headers["Content-Range"] = "bytes 55-59/60"
    with pytest.raises(AttemptError):
        extent(part, offset=5)


def test_version_is_a_strong_etag_or_a_date() -> None:
    assert response_version(make_response(ETag='"abc"', Last_Modified=PAST)) == '"abc"'
    assert response_version(make_response(ETag='W/"abc"', Last_Modified=PAST)) == PAST
    assert response_version(make_response(ETag='W/"abc"')) == ""


def test_unreachable_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAUSES", (0.0, 0.0, 0.0))
    with serving({}) as server:
        check_reachable(f"{server.url}/none", timeout=1)
        assert server.heads == 1
    with pytest.raises(InputError, match=rf"^{server.url}.*: Connection refused.*") as caught:
        check_reachable(f"{server.url}/none", timeout=1)
    assert "\n" not in str(caught.value)
