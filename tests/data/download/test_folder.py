import errno
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from rich.console import Console

from common.errors import InputError
from data.download.images import MISSING_LIST, check_space, locked_folder, tidy, write_missing_list
from tests.support.without_locks import built_library, without_locks

Usage = namedtuple("Usage", "total used free")


def test_a_second_download_into_a_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with (
        locked_folder(folder),
        pytest.raises(InputError, match="another download is at work here"),
        locked_folder(folder),
    ):
        pass
    with locked_folder(folder):
        pass


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(InputError, match=f"--out: {path}: "), locked_folder(path):
            pass
    assert (tmp_path / "a").read_text() == "precious"


def test_parts_of_images_are_removed_and_the_rest_is_named(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg.part", "c.jpg"):
        (tmp_path / name).touch()
    assert tidy(tmp_path) == {"a.jpg", "c.jpg"}
    assert not (tmp_path / "b.jpg.part").exists()
    assert tidy(tmp_path / "new") == set() and (tmp_path / "new").is_dir()


def test_what_is_missing_is_listed_until_nothing_is(tmp_path: Path) -> None:
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
def test_what_cannot_fit_is_refused_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, outcome: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, free))
    console = Console(record=True, width=200)
    if outcome == "no":
        with pytest.raises(InputError, match="100 images take about"):
            check_space(tmp_path, images=100, bytes_each=10, console=console)
    else:
        check_space(tmp_path, images=100, bytes_each=10, console=console)
    text = console.export_text()
    assert text.startswith("warning: ") == (outcome == "close") and text.count("\n") <= 1


def test_a_file_system_without_locks_takes_one_download(tmp_path: Path) -> None:
    library = built_library(tmp_path)
    code = """
import sys
from pathlib import Path
from data.download.images import locked_folder
from common.errors import InputError
try:
    with locked_folder(Path(sys.argv[1])):
        print("begun", flush=True)
        sys.stdin.readline()
except InputError as error:
    sys.exit(str(error))
"""
    out = tmp_path / "out"
    words = [sys.executable, "-c", code, str(out)]
    environment = without_locks(library, errno.ENOLCK)
    with subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "begun\n"
        second = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert second.returncode == 1 and "another download is at work" in second.stderr
        first.communicate("\n", timeout=60)
    assert first.returncode == 0 and not list(out.iterdir())
