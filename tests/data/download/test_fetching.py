"""One file from a server that does what servers do."""

import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from data.download.http import (
    AttemptError,
    Check,
    Connection,
    FetchError,
    HttpOptions,
    MissingFileError,
    Part,
    StoppedError,
    fetch,
)
from data.download.images import check_image
from tests.data.download.datasets import jpeg
from tests.data.download.server import FILE_FAULTS, IMAGE_FAULTS, Server, serving

IMAGE = jpeg(1)
LONG = bytes(range(256)) * 3000
GOOD = {"slow", "chunked", "whole_for_a_part"}


@pytest.fixture(scope="module")
def http() -> Iterator[Server]:
    with serving({"/image.jpg": IMAGE, "/long": LONG}) as server:
        yield server


@pytest.fixture
def server(http: Server) -> Server:
    http.asked.clear()
    http.faults.clear()
    http.fallback, http.tag = (lambda path: "serve"), "1"
    return http


@pytest.fixture
def connection() -> Iterator[Connection]:
    with requests.Session() as session:
        options = HttpOptions(timeout=0.6, attempts=4, first_pause=0.001)
        yield Connection(session, options, threading.Event())


def is_long(path: Path) -> None:
    if path.read_bytes() != LONG:
        raise AttemptError("another file")


def get(
    server: Server,
    path: Path,
    connection: Connection,
    *,
    check: Check = check_image,
    url: str = "/image.jpg",
    limit: int = 1_000_000,
    attempts: int = 4,
    resume: bool = False,
    pauses: list[float] | None = None,
) -> int:
    return fetch(
        server.url + url,
        path,
        check=check,
        limit=limit,
        connection=connection._replace(options=connection.options._replace(attempts=attempts)),
        resume=resume,
        retried=lambda reason, pause: pauses.append(pause) if pauses is not None else None,
    )


@pytest.mark.parametrize("fault", IMAGE_FAULTS)
def test_an_image_arrives_whatever_went_wrong_at_first(
    tmp_path: Path, server: Server, connection: Connection, fault: str
) -> None:
    server.faults["/image.jpg"] = [fault, fault]
    assert get(server, tmp_path / "a.jpg", connection) == len(IMAGE)
    assert (tmp_path / "a.jpg").read_bytes() == IMAGE
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]
    assert len(server.asked) == (1 if fault in GOOD else 3)


@pytest.mark.parametrize("fault", FILE_FAULTS)
@pytest.mark.parametrize("before", ["nothing", "a part"])
def test_a_long_file_arrives_whatever_went_wrong_at_first(
    tmp_path: Path, server: Server, connection: Connection, fault: str, before: str
) -> None:
    server.faults["/long"] = [fault, "cut_off", fault, "cut_off"]
    path = tmp_path / "long"
    if before == "a part":
        Part.of(path).path.write_bytes(LONG[:100_000])
        Part.of(path).version.write_text('"1"')
    get(server, path, connection, check=is_long, url="/long", resume=True, attempts=8)
    assert path.read_bytes() == LONG
    assert [entry.name for entry in tmp_path.iterdir()] == ["long"]


def test_a_long_file_goes_on_where_it_broke_off(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.faults["/long"] = ["cut_off", "error_503", "cut_off"]
    get(server, tmp_path / "long", connection, check=is_long, url="/long", resume=True)
    starts = [int(asked.range.removeprefix("bytes=").rstrip("-") or 0) for asked in server.asked]
    half, three_quarters = len(LONG) // 2, len(LONG) * 3 // 4
    chunk = 1 << 16
    assert starts[0] == 0 and half - chunk < starts[1] <= half and starts[2] == starts[1]
    assert three_quarters - chunk < starts[3] <= three_quarters
    assert {asked.if_range for asked in server.asked[1:]} == {'"1"'}


def test_a_part_of_an_earlier_call_is_gone_on_with(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.faults["/long"] = ["cut_off", "cut_off_whole"]
    path = tmp_path / "long"
    with pytest.raises(FetchError):
        get(server, path, connection, check=is_long, url="/long", resume=True, attempts=1)
    assert not path.exists() and Part.of(path).path.stat().st_size > len(LONG) // 2 - (1 << 16)
    server.faults["/long"] = []
    get(server, path, connection, check=is_long, url="/long", resume=True)
    assert server.asked[-1].range.startswith("bytes=") and path.read_bytes() == LONG


def test_a_part_of_another_version_is_dropped(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    path = tmp_path / "long"
    Part.of(path).path.write_bytes(b"older" * 1000)
    Part.of(path).version.write_text('"0"')
    get(server, path, connection, check=is_long, url="/long", resume=True)
    assert [asked.range for asked in server.asked] == ["bytes=5000-"]
    assert path.read_bytes() == LONG


def test_a_part_of_unknown_version_is_dropped(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    path = tmp_path / "long"
    Part.of(path).path.write_bytes(b"older" * 1000)
    get(server, path, connection, check=is_long, url="/long", resume=True)
    assert [asked.range for asked in server.asked] == [""]


def test_a_part_that_is_complete_is_only_checked(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    path = tmp_path / "long"
    Part.of(path).path.write_bytes(LONG)
    Part.of(path).version.write_text('"1"')
    get(server, path, connection, check=is_long, url="/long", resume=True, attempts=1)
    assert path.read_bytes() == LONG and len(server.asked) == 1


def test_a_part_that_fails_the_check_is_not_gone_on_with(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    path = tmp_path / "long"
    Part.of(path).path.write_bytes(b"?" * 1000)
    Part.of(path).version.write_text('"1"')
    get(server, path, connection, check=is_long, url="/long", resume=True, attempts=2)
    assert [asked.range for asked in server.asked] == ["bytes=1000-", ""]


def test_getting_further_starts_the_count_of_attempts_anew(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.faults["/long"] = ["cut_off"] * 4
    get(server, tmp_path / "long", connection, check=is_long, url="/long", resume=True, attempts=2)
    assert len(server.asked) == 5


def test_a_server_that_breaks_off_at_the_same_place_is_given_up(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.fallback = lambda path: "cut_off_whole"
    with pytest.raises(FetchError, match="tried 3 times"):
        get(server, tmp_path / "a", connection, check=is_long, url="/long", resume=True, attempts=3)
    assert len(server.asked) <= 5


@pytest.mark.parametrize("resume", [True, False])
def test_a_missing_file_is_asked_for_once(
    tmp_path: Path, server: Server, connection: Connection, resume: bool
) -> None:
    with pytest.raises(MissingFileError, match=r"/none\.jpg: 404 Not Found"):
        get(server, tmp_path / "a.jpg", connection, url="/none.jpg", resume=resume)
    assert len(server.asked) == 1 and not list(tmp_path.iterdir())


def test_a_refusal_is_not_asked_for_again(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.faults["/image.jpg"] = ["unauthorized"]
    with pytest.raises(FetchError, match="401 Unauthorized"):
        get(server, tmp_path / "a.jpg", connection)
    assert len(server.asked) == 1


def test_attempts_are_counted_and_the_last_reason_is_told(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.fallback = lambda path: "html"
    with pytest.raises(FetchError, match=r"no image: '<!DOCTYPE html>.*; tried 4 times$"):
        get(server, tmp_path / "a.jpg", connection)
    assert len(server.asked) == 4 and not list(tmp_path.iterdir())


def test_a_server_is_left_alone_for_as_long_as_it_asks(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.faults["/image.jpg"] = ["wait_a_second"]
    pauses: list[float] = []
    began = time.monotonic()
    get(server, tmp_path / "a.jpg", connection, pauses=pauses)
    assert pauses == [1.0] and 1.0 <= time.monotonic() - began < 3


def test_pauses_double_up_to_half_a_minute() -> None:
    options = HttpOptions(attempts=20, first_pause=0.5)
    for failures, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (20, 30.0)):
        assert longest / 2 <= options.pause(failures) <= longest


def test_a_pause_ends_when_the_command_does(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.faults["/image.jpg"] = ["wait_a_second"]
    threading.Timer(0.1, connection.stop.set).start()
    began = time.monotonic()
    with pytest.raises(StoppedError):
        get(server, tmp_path / "a.jpg", connection)
    assert time.monotonic() - began < 0.8 and not list(tmp_path.iterdir())


def test_an_earlier_file_stays_until_the_new_one_is_good(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"old")
    server.fallback = lambda path: "truncated"
    with pytest.raises(FetchError):
        get(server, path, connection, attempts=1)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("resume", [False, True], ids=["an image", "a long file"])
@pytest.mark.parametrize("fault", ["chunks_without_end", "serve", "negative_chunk"])
def test_more_than_expected_is_refused_at_once_and_leaves_nothing(
    tmp_path: Path, server: Server, connection: Connection, fault: str, resume: bool
) -> None:
    server.faults["/long"] = [fault]
    with pytest.raises(FetchError) as caught:
        get(server, tmp_path / "long", connection, url="/long", limit=700_000, resume=resume)
    assert len(server.asked) == 1 and "\n" not in str(caught.value)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


def test_the_body_of_a_redirection_is_not_inflated(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.faults["/image.jpg"] = ["sent_on_with_a_bomb"]
    tracemalloc.start()
    try:
        assert get(server, tmp_path / "a.jpg", connection) == len(IMAGE)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_reasons_of_a_server_are_one_short_printable_line(
    tmp_path: Path, server: Server, connection: Connection
) -> None:
    server.faults["/image.jpg"] = ["control_characters"] * 4
    reasons: list[str] = []
    with pytest.raises(FetchError) as caught:
        fetch(
            f"{server.url}/image.jpg",
            tmp_path / "a.jpg",
            check=check_image,
            limit=1_000_000,
            connection=connection,
            retried=lambda reason, pause: reasons.append(reason),
        )
    assert len(reasons) == 3
    for text in (*reasons, str(caught.value)):
        assert "503" in text and text.isprintable() and len(text) < 300
