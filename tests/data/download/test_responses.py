import time
from email.utils import formatdate

import pytest
import requests

from common.errors import InputError
from data.download import http
from data.download.http import (
    LONGEST_WAIT,
    AttemptError,
    FetchError,
    body_start,
    check_reachable,
    check_status,
    content_range,
    file_length,
    response_version,
    seconds_to_wait,
)
from tests.data.download.server import serving


def response(status: int = 200, url: str = "https://a/b", **headers: str) -> requests.Response:
    made = requests.Response()
    made.status_code, made.url = status, url
    made.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return made


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("7", 7, 7),
        ("86400", LONGEST_WAIT, LONGEST_WAIT),
        ("-5", 0, 0),
        ("soon", 0, 0),
        ("", 0, 0),
        ("1.5", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
    ],
)
def test_retry_after_in_all_its_forms(text: str, least: float, most: float) -> None:
    assert least <= seconds_to_wait(response(503, Retry_After=text)) <= most


def test_retry_after_as_a_date_to_come() -> None:
    date = formatdate(time.time() + 60, usegmt=True)
    assert 50 <= seconds_to_wait(response(503, Retry_After=date)) <= 60


def test_a_redirection_away_from_https_is_refused() -> None:
    with pytest.raises(FetchError, match="which is not HTTPS"):
        check_status(response(url="http://elsewhere/b"), url="https://a/b")
    check_status(response(url="https://elsewhere/b"), url="https://a/b")
    check_status(response(url="http://elsewhere/b"), url="http://a/b")


@pytest.mark.parametrize(
    "text",
    ["", "bytes 5-9/*", "bytes 5-8/10", "bytes 5-12/10", "5-9/10", "bytes -5-9/10", "bytes ٥-9/10"],
)
def test_ranges_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(AttemptError):
        content_range(response(206, Content_Range=text))


def test_a_body_begins_where_it_was_asked_to_or_at_the_start() -> None:
    part = response(206, Content_Range="bytes 5-9/10")
    assert body_start(part, asked=5) == 5 and file_length(part) == 10
    assert body_start(response(200), asked=5) == 0
    for asked in (0, 4, 6):
        with pytest.raises(AttemptError):
            body_start(part, asked=asked)


@pytest.mark.parametrize("length", ["", "-1", "1e3", "٣"])
def test_a_body_without_a_length_is_refused(length: str) -> None:
    with pytest.raises(AttemptError):
        file_length(response(Content_Length=length))


def test_a_version_is_a_strong_tag_or_else_a_date() -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    assert response_version(response(ETag='"abc"', Last_Modified=date)) == '"abc"'
    assert response_version(response(ETag='W/"abc"', Last_Modified=date)) == date
    assert response_version(response(ETag='W/"abc"')) == ""


def test_a_server_that_is_not_there_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAUSES", (0.0, 0.0, 0.0))
    with serving({}) as server:
        check_reachable(f"{server.url}/none", timeout=1)
        assert server.heads == 1
    with pytest.raises(InputError, match="cannot be reached: Connection refused") as caught:
        check_reachable(f"{server.url}/none", timeout=1)
    assert str(caught.value).startswith(server.url) and "\n" not in str(caught.value)
