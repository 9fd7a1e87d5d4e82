"""Downloads of many images by threads, of one file with a bar, and their folder."""

import io
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from rich.console import Console

import common.console
from common.console import Rate
from common.errors import InputError
from common.locks import locked_folder
from common.outputs import check_space
from data.download.datasets import check_zip
from data.download.http import FetchError, HttpOptions
from data.download.images import (
    FAILURES_IN_A_ROW,
    MISSING_LIST,
    Images,
    fetch_file,
    fetch_images,
    tidy,
    write_missing_list,
)
from tests.data.download.samples import jpeg
from tests.data.download.server import Server, serving

BODY = jpeg(0)
QUICK = HttpOptions(workers=4, timeout=1.5, attempts=3, first_pause=0.001)


def many(count: int) -> dict[str, bytes]:
    return {f"/{index:03}.jpg": BODY for index in range(count)}


def get_images(
    server: Server,
    folder: Path,
    names: Iterable[str],
    present: Iterable[str] = (),
    output: TextIO | None = None,
) -> dict[str, str]:
    console = Console(file=output or io.StringIO(), width=120)
    images = Images("images", tuple(names), folder, server.url)
    return fetch_images(images, present=set(present), options=QUICK, console=console)


def test_number_of_parallel_downloads(tmp_path: Path) -> None:
    with serving(many(12)) as server:
        server.fallback = lambda path: "slow"
        assert get_images(server, tmp_path, (path[1:] for path in server.files)) == {}
        assert server.most_active == 4 and len(server.requests) == 12


def test_existing_images_are_not_requested(tmp_path: Path) -> None:
    names, output = ("000.jpg", "001.jpg", "002.jpg"), io.StringIO()
    with serving(many(3)) as server:
        get_images(server, tmp_path, names, {"000.jpg", "002.jpg"}, output)
        assert [request.path for request in server.requests] == ["/001.jpg"]
        get_images(server, tmp_path, names, names, output)
        assert len(server.requests) == 1
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("images 3/3  0:00:00 left  ") and lines[0].endswith(" MB/s")
    assert lines[1].startswith("images: all 3 ")


def test_failed_images_are_returned_in_order(tmp_path: Path) -> None:
    with serving(many(4)) as server:
        server.fallback = lambda path: "garbage" if path == "/001.jpg" else "serve"
        names = ("none.jpg", "000.jpg", "001.jpg", "002.jpg", "003.jpg")
        failed = get_images(server, tmp_path, names)
    assert list(failed) == ["none.jpg", "001.jpg"]
    assert "404 Not Found" in failed["none.jpg"] and "tried 3 times" in failed["001.jpg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000.jpg", "002.jpg", "003.jpg"]


def test_many_failures_in_a_row_end_the_download(tmp_path: Path) -> None:
    with serving({}) as server:
        with pytest.raises(FetchError, match=r"images in a row .*; the last: http"):
            get_images(server, tmp_path, (f"{index}.jpg" for index in range(100_000)))
        assert FAILURES_IN_A_ROW <= len(server.requests) < 20 * FAILURES_IN_A_ROW
    assert not list(tmp_path.iterdir())


def test_error_in_a_thread_is_raised_in_the_caller(tmp_path: Path) -> None:
    with serving(many(3)) as server, pytest.raises(FileNotFoundError):
        get_images(server, tmp_path / "no such folder", ("000.jpg", "001.jpg"))


@pytest.fixture
def zip_server() -> Iterator[Server]:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("a.json", bytes(range(250)) * 10_000)
    with serving({"/a.zip": file.getvalue()}) as started:
        yield started


def get(zip_server: Server, path: Path, **options: Any) -> str:
    """Return the output."""
    output = io.StringIO()
    check = partial(check_zip, members=["a.json"], limit=10_000_000)
    console, url = Console(file=output, **options), f"{zip_server.url}/a.zip"
    fetch_file(url, path, check=check, limit=10_000_000, options=QUICK, console=console)
    return output.getvalue()


def test_progress_lines_have_megabytes_and_retries(tmp_path: Path, zip_server: Server) -> None:
    zip_server.faults["/a.zip"] = ["error_503", "cut_off"]
    path = tmp_path / "new" / "a.zip"
    lines = get(zip_server, path, width=40).splitlines()
    assert re.fullmatch(r"a\.zip: 503 Service Unavailable; retry in 0\.0 s", lines[0])
    assert any(line.startswith("a.zip: connection lost; retry") for line in lines)
    assert re.fullmatch(r"a\.zip, MB 3/3  0:00:00 left  \d+\.\d MB/s", lines[-1])
    assert path.read_bytes() == zip_server.files["/a.zip"]
    before = len(zip_server.requests), zip_server.heads
    get(zip_server, path)  # requests nothing
    assert (len(zip_server.requests), zip_server.heads) == before


def test_progress_bar(tmp_path: Path, zip_server: Server) -> None:
    assert "3/3" in get(zip_server, tmp_path / "a.zip", force_terminal=True, width=100)


def test_rate_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(common.console, "time", clock)
    rate = Rate()
    for seconds, bytes_so_far, shown in (
        (0, 50_000_000, "0.0 MB/s"),  # earlier bytes do not count
        (2, 53_000_000, "1.5 MB/s"),
        (100, 53_000_000, "0.0 MB/s"),
        (1, 54_000_000, "1.0 MB/s"),
        (1, 0, "0.0 MB/s"),  # the download started again
        (1, 2_000_000, "2.0 MB/s"),
    ):
        now += seconds
        assert rate.note(bytes_so_far) == shown


def test_second_download_into_a_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    refused = pytest.raises(InputError, match="another download")
    with locked_folder(folder), refused, locked_folder(folder):
        pass
    with locked_folder(folder):
        pass
    (tmp_path / "a").write_text("precious")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(InputError, match=f"--out: {path}: "), locked_folder(path):
            pass
    assert (tmp_path / "a").read_text() == "precious"


def test_partial_images_are_removed(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg.part", "c.jpg"):
        (tmp_path / name).touch()
    assert tidy(tmp_path) == {"a.jpg", "c.jpg"}
    assert not (tmp_path / "b.jpg.part").exists()
    assert tidy(tmp_path / "new") == set() and (tmp_path / "new").is_dir()


def test_list_of_missing_images(tmp_path: Path) -> None:
    write_missing_list(tmp_path, {"train2017/a.jpg": "404 Not Found", "train2017/b.jpg": "late"})
    text = (tmp_path / MISSING_LIST).read_text()
    assert text == "train2017/a.jpg\t404 Not Found\ntrain2017/b.jpg\tlate\n"
    write_missing_list(tmp_path, {"train2017/a\nb\tc\udcff\x1b[2J.jpg": "late"})
    lines = (tmp_path / MISSING_LIST).read_text().splitlines()
    assert len(lines) == 1 and len(lines[0].split("\t")) == 2 and "\x1b" not in lines[0]
    write_missing_list(tmp_path, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("free", "outcome"), [(1000, "fits"), (999, "close"), (500, "close"), (499, "no")]
)
def test_disk_space_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, outcome: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    console = Console(record=True, width=200)
    with pytest.raises(InputError, match="100 images") if outcome == "no" else nullcontext():
        check_space(tmp_path, images=100, bytes_each=10, console=console)
    text = console.export_text()
    assert text.startswith("warning: ") == (outcome == "close") and text.count("\n") <= 1
