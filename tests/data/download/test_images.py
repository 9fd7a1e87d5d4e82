"""Many images, by several threads."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from data.download.http import FetchError, HttpOptions
from data.download.images import FAILURES_IN_A_ROW, Images, fetch_images
from tests.data.download.datasets import jpeg
from tests.data.download.server import Server, serving

BODY = jpeg(0)
QUICK = HttpOptions(workers=4, timeout=0.6, attempts=3, first_pause=0.001)


def images(server: Server, folder: Path, *names: str) -> Images:
    return Images("images", names, folder, server.url)


def many(count: int) -> dict[str, bytes]:
    return {f"/{index:03}.jpg": BODY for index in range(count)}


def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def test_no_more_are_asked_for_at_a_time_than_there_are_workers(tmp_path: Path) -> None:
    with serving(many(12)) as server:
        server.fallback = lambda path: "slow"
        wanted = images(server, tmp_path, *(path[1:] for path in server.files))
        assert fetch_images(wanted, present=set(), options=QUICK, console=console()) == {}
        assert server.most_at_once == 4 and len(server.asked) == 12


def test_images_that_are_there_are_not_asked_for(tmp_path: Path) -> None:
    with serving(many(3)) as server:
        wanted, shown = images(server, tmp_path, "000.jpg", "001.jpg", "002.jpg"), console()
        fetch_images(wanted, present={"000.jpg", "002.jpg"}, options=QUICK, console=shown)
        assert [asked.path for asked in server.asked] == ["/001.jpg"]
        fetch_images(wanted, present=set(wanted.names), options=QUICK, console=shown)
        assert len(server.asked) == 1
    lines = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("images 3/3  0:00:00 left  ") and lines[0].endswith(" MB/s")
    assert lines[1] == "images: all 3 are there"


def test_images_that_cannot_be_had_are_told_in_order_and_the_rest_arrives(tmp_path: Path) -> None:
    with serving(many(4)) as server:
        server.fallback = lambda path: "garbage" if path == "/001.jpg" else "serve"
        names = ("none.jpg", "000.jpg", "001.jpg", "002.jpg", "003.jpg")
        wanted = images(server, tmp_path, *names)
        failed = fetch_images(wanted, present=set(), options=QUICK, console=console())
    assert list(failed) == ["none.jpg", "001.jpg"]
    assert "404 Not Found" in failed["none.jpg"] and "tried 3 times" in failed["001.jpg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000.jpg", "002.jpg", "003.jpg"]


def test_a_server_that_has_nothing_is_left_alone_after_a_while(tmp_path: Path) -> None:
    with serving({}) as server:
        wanted = images(server, tmp_path, *(f"{index}.jpg" for index in range(100_000)))
        with pytest.raises(FetchError, match="images in a row could not be had; the last: http"):
            fetch_images(wanted, present=set(), options=QUICK, console=console())
        assert FAILURES_IN_A_ROW <= len(server.asked) < 20 * FAILURES_IN_A_ROW
    assert not list(tmp_path.iterdir())


def test_an_error_in_a_thread_is_raised_in_the_caller(tmp_path: Path) -> None:
    with serving(many(3)) as server:
        wanted = images(server, tmp_path / "no such folder", "000.jpg", "001.jpg")
        with pytest.raises(FileNotFoundError):
            fetch_images(wanted, present=set(), options=QUICK, console=console())
