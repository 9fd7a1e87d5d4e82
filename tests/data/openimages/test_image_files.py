import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from common.errors import InputError
from data.openimages import export
from data.openimages.export import list_images, read_sizes
from tests.data.openimages.csv_tables import size_of, write_photos

REPOSITORY = Path(__file__).resolve().parents[3]


QUIET = Console(quiet=True)


def test_images_of_a_folder_are_listed(tmp_path: Path) -> None:
    write_photos(tmp_path, [2**64 - 1, 7, 3])
    for name in (
        "7.jpg",
        "0000000000000009.png",
        "000000000000000A.jpg",
        "0000000000000008.jpg.part",
    ):
        (tmp_path / name).touch()
    listed = list_images(tmp_path)
    assert sorted(listed.tolist()) == [3, 7, 2**64 - 1] and listed.dtype == np.uint64


def test_an_empty_folder_has_no_images(tmp_path: Path) -> None:
    assert list_images(tmp_path).tolist() == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none: folder of images cannot be read: No such file"):
        list_images(tmp_path / "none")


def test_sizes_come_in_the_order_asked_for_with_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FILES_AT_ONCE", 4)
    images = [5, 1, 30, 2, 9, 8, 7, 21, 22, 23]
    write_photos(tmp_path, images)
    ids = np.array(images, dtype=np.uint64)
    output = io.StringIO()
    sizes = read_sizes(tmp_path, ids, console=Console(file=output, width=100))
    assert sizes.tolist() == [list(size_of(image)) for image in images]
    assert "reading sizes of images 10/10" in output.getvalue()


def test_size_is_as_stored_whatever_exif_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    Image.new("RGB", (50, 20)).save(tmp_path / f"{1:016x}.jpg", exif=exif)
    sizes = read_sizes(tmp_path, np.array([1], dtype=np.uint64), console=QUIET)
    assert sizes.tolist() == [[50, 20]]


def test_no_images_at_all(tmp_path: Path) -> None:
    assert read_sizes(tmp_path, np.empty(0, dtype=np.uint64), console=QUIET).shape == (0, 2)


def test_unreadable_images_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    write_photos(tmp_path, range(1, 11))
    (tmp_path / f"{4:016x}.jpg").write_bytes(b"<html>")
    (tmp_path / f"{6:016x}.jpg").write_bytes(b"")
    (tmp_path / f"{9:016x}.jpg").unlink()
    expected = (
        f"{tmp_path}: 3 of 10 images cannot be read, the first is 0000000000000004.jpg "
        "(cannot identify image file '0000000000000004.jpg'); download them again"
    )
    with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
        read_sizes(tmp_path, np.arange(1, 11, dtype=np.uint64), console=QUIET)


def test_formats_that_data_sets_do_not_hold_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / f"{1:016x}.jpg", format="PPM")
    with pytest.raises(InputError, match="1 of 1 images cannot be read"):
        read_sizes(tmp_path, np.array([1], dtype=np.uint64), console=QUIET)


ONE_READS_ONE_IS_IDLE = """
import os, sys, time
from pathlib import Path
import numpy as np
from rich.console import Console
from data.openimages import export

def wait(path):
    if path.name == "0000000000000000.jpg":
        time.sleep(0.5)  # the other process is idle then
        print(os.getpid(), flush=True)
        time.sleep(60)
    return 1, 1

export._size_of = wait
export.FILES_AT_ONCE = 1
export.read_sizes(Path("."), np.arange(2, dtype=np.uint64), console=Console(quiet=True))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_the_one_that_started_them(number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ONE_READS_ONE_IS_IDLE],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait(timeout=30)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline, "the process goes on without its parent"
        time.sleep(0.05)


def test_ctrl_c_is_reported_by_this_process_alone() -> None:
    script = ONE_READS_ONE_IS_IDLE.replace("time.sleep(60)", "time.sleep(1)")
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with parent:
        assert parent.stdout is not None and parent.stderr is not None
        parent.stdout.readline()
        os.killpg(parent.pid, signal.SIGINT)
        errors = parent.stderr.read()
    assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt")
