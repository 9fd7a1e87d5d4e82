"""A long file, and what is shown of it."""

import io
import re
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

import data.download.images
from data.download.datasets import check_zip
from data.download.http import HttpOptions
from data.download.images import Rate, fetch_file
from tests.data.download.server import Server, serving

OPTIONS = HttpOptions(timeout=0.6, attempts=3, first_pause=0.001)


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("a.json", bytes(range(250)) * 10_000)
    return file.getvalue()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving({"/a.zip": archive()}) as started:
        yield started


def get(server: Server, path: Path, console: Console) -> None:
    check = partial(check_zip, members=["a.json"], limit=10_000_000)
    fetch_file(
        f"{server.url}/a.zip",
        path,
        check=check,
        limit=10_000_000,
        options=OPTIONS,
        console=console,
    )


def test_lines_tell_megabytes_and_why_it_takes_longer(tmp_path: Path, server: Server) -> None:
    server.faults["/a.zip"] = ["error_503", "cut_off"]
    console = Console(file=io.StringIO(), width=40)
    get(server, tmp_path / "new" / "a.zip", console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert re.fullmatch(r"a\.zip: 503 Service Unavailable; again in 0\.0 s", lines[0])
    assert any(line.startswith("a.zip: the connection broke off; again") for line in lines)
    assert re.fullmatch(r"a\.zip, MB 3/3  0:00:00 left  \d+\.\d MB/s", lines[-1])
    assert (tmp_path / "new" / "a.zip").read_bytes() == archive()


def test_a_terminal_gets_a_bar(tmp_path: Path, server: Server) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    get(server, tmp_path / "a.zip", console)
    assert "3/3" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_file_that_is_there_is_not_asked_for(tmp_path: Path, server: Server) -> None:
    (tmp_path / "a.zip").write_bytes(b"mine")
    get(server, tmp_path / "a.zip", Console(file=io.StringIO()))
    assert not server.asked and not server.heads


def test_the_rate_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(data.download.images, "time", clock)
    rate = Rate()
    assert rate.note(50_000_000) == "0.0 MB/s"  # what was there before is not counted
    clock.now += 2
    assert rate.note(53_000_000) == "1.5 MB/s"
    clock.now += 100
    assert rate.note(53_000_000) == "0.0 MB/s"
    clock.now += 1
    assert rate.note(54_000_000) == "1.0 MB/s"
    clock.now += 1
    assert rate.note(0) == "0.0 MB/s"  # it began anew
    clock.now += 1
    assert rate.note(2_000_000) == "2.0 MB/s"
