"""The index: its files, and its creation for a JSON file by one of several processes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data.index
from common.errors import InputError
from data.annotations import Annotations
from data.coco_json import read_annotations
from data.index import find_or_make_index, open_annotations, open_index, write_index
from tests.data.samples import assert_same_annotations, random_content, write_json
from tests.support.commands import start_program


def random_annotations(folder: Path, *, images: int = 30, boxes: int = 200) -> Annotations:
    content = random_content(images=images, boxes=boxes)
    return read_annotations(write_json(folder / "labels.json", content))


@pytest.fixture
def index(tmp_path: Path) -> Path:
    write_index(tmp_path / "index", random_annotations(tmp_path), made_from="labels.json")
    return tmp_path / "index"


@pytest.mark.parametrize("boxes", [0, 200])
def test_index_round_trip(tmp_path: Path, boxes: int) -> None:
    annotations = random_annotations(tmp_path, boxes=boxes)
    write_index(tmp_path / "index", annotations, made_from="labels.json")
    opened = open_index(tmp_path / "index")
    assert_same_annotations(opened, annotations)
    assert bool(opened.images_with_objects().tolist()) == bool(boxes)
    with pytest.raises(OSError, match="not empty"):  # an index is never overwritten
        write_index(tmp_path / "index", annotations, made_from="other.json")
    assert_same_annotations(open_index(tmp_path / "index"), annotations)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "labels.json"]


def test_columns_are_memory_mapped_and_read_only(index: Path) -> None:
    boxes = open_index(index).boxes
    assert isinstance(boxes.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        boxes[0] = 0


@pytest.mark.parametrize("name", ["boxes.npy", "file_names.npy", "image_ids.npy"])
def test_truncated_file_is_refused(index: Path, name: str) -> None:
    os.truncate(index / name, (index / name).stat().st_size - 8)
    with pytest.raises(InputError, match=r"index: damaged index \(.+\)"):
        open_index(index)


def test_damaged_index_is_refused(index: Path) -> None:
    np.save(index / "widths.npy", np.ones(7, dtype=np.int32))
    with pytest.raises(InputError, match=r"widths has 7 rows, expected 30"):
        open_index(index)
    (index / "box_areas.npy").unlink()
    with pytest.raises(InputError, match=r"damaged index .*box_areas\.npy"):
        open_index(index)
    description = index / "index.json"
    description.write_text(description.read_text().replace('"format": 3', '"format": 99'))
    with pytest.raises(InputError, match="format 99"):
        open_index(index)


def test_images_with_objects_equal_those_of_a_plain_loop(tmp_path: Path) -> None:
    annotations = random_annotations(tmp_path, images=300, boxes=400)
    expected = [
        row
        for row in range(len(annotations))
        if not all(annotations.box_is_crowd[annotations.box_slice(row)].tolist())
    ]
    assert annotations.images_with_objects().tolist() == expected
    assert 0 < len(expected) < 300


def test_images_without_boxes_at_the_end_do_not_hide_the_last_objects(tmp_path: Path) -> None:
    annotations = replace(
        random_annotations(tmp_path, images=3, boxes=2),
        box_offsets=np.array([0, 2, 2, 2]),
        box_is_crowd=np.array([True, False]),
    )
    assert annotations.images_with_objects().tolist() == [0]


def labels(folder: Path, *, boxes: int = 50) -> Path:
    folder.mkdir(exist_ok=True)
    return write_json(folder / "labels.json", random_content(images=20, boxes=boxes))


def indexed(folder: Path) -> tuple[Path, Path]:
    """Write a JSON file and its index; return the paths of both."""
    path = labels(folder)
    index = find_or_make_index(path)
    assert index.was_made and index.folder
    return path, index.folder


def refuse_to_read(*_arguments: object, **_options: object) -> None:
    raise AssertionError("the JSON file was read again")


def test_json_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = indexed(tmp_path)
    assert folder.parent == tmp_path / "labels.json.index"
    monkeypatch.setattr(data.index, "read_annotations", refuse_to_read)
    with monkeypatch.context() as unread:
        unread.setattr(data.index, "digest", refuse_to_read)
        second = find_or_make_index(path)
    assert not second.was_made and second.folder == folder and len(second.annotations.boxes) == 50
    # A touched or copied file keeps its index.
    os.utime(path, (1, 1))
    shutil.copytree(tmp_path, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "labels.json", (2, 2))
    for parent in (tmp_path, tmp_path / "copy"):
        assert not find_or_make_index(parent / "labels.json").was_made


def test_changed_content_replaces_the_index(tmp_path: Path) -> None:
    _, before = indexed(tmp_path)
    path = labels(tmp_path, boxes=51)
    after = find_or_make_index(path)
    assert after.folder and len(after.annotations.boxes) == 51
    assert not before.exists()
    path.write_text(path.read_text().replace('"kind 90"', '"KIND 90"'))  # of equal size
    assert open_annotations(path).category_names[0] == "KIND 90"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "boxes.npy", 100),
        lambda folder: (folder / "widths.npy").unlink(),
        lambda folder: (folder / "index.json").write_text("{"),
    ],
    ids=["cut short", "removed", "description"],
)
def test_damaged_index_is_created_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path, folder = indexed(tmp_path)
    damage(folder)
    index = find_or_make_index(path)
    assert index.was_made and len(index.annotations.boxes) == 50


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    home = tmp_path / "labels.json.index"
    half = home / ".0123456789abcdef-format1.0123456789abcdef.partial"
    half.mkdir(parents=True)
    (half / "boxes.npy").write_bytes(b"half")
    (home / ".current.json.fedcba9876543210.partial").write_text("{")
    _, folder = indexed(tmp_path)
    assert {entry.name for entry in home.iterdir()} == {folder.name, "current.json", ".lock"}


def test_only_files_of_an_index_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, first = indexed(tmp_path)
    home = first.parent
    (home / "notes.txt").write_text("mine")
    (home / "thesis").mkdir()
    (home / "thesis" / "1.tex").write_text("mine")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.json").write_text("mine")
    (home / "0123456789abcdef-format1").symlink_to(tmp_path / "docs")
    (home / "fedcba9876543210-format1").mkdir()
    (home / "fedcba9876543210-format1" / "my-evaluation.json").write_text("mine")
    capsys.readouterr()
    write_json(path, random_content(images=3, boxes=9))  # its earlier index is of no use
    assert find_or_make_index(path).was_made and not first.exists()
    assert "note: " in (note := capsys.readouterr().out)
    assert "notes.txt, … stays: not files of an index" in " ".join(note.split())
    kept = [home / "notes.txt", home / "thesis" / "1.tex", tmp_path / "docs" / "index.json"]
    kept.append(home / "fedcba9876543210-format1" / "my-evaluation.json")
    assert [file.read_text() for file in kept] == ["mine"] * 4


@pytest.mark.parametrize("name", ["docs", "labels2.json.index"])
def test_index_folder_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    path = write_json(tmp_path / "labels.json", random_content(images=3, boxes=9))
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("mine")
    (tmp_path / "labels.json.index").symlink_to(name)
    with pytest.raises(InputError, match=r"labels\.json\.index: is a link"):
        find_or_make_index(path)
    assert [file.name for file in (tmp_path / name).iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_lock_of_an_index_is_not_written_through(tmp_path: Path, kind: str) -> None:
    path = write_json(tmp_path / "labels.json", random_content(images=3, boxes=9))
    lock = tmp_path / "labels.json.index" / ".lock"
    lock.parent.mkdir()
    (tmp_path / ".bashrc").write_text("export A=1\n")
    if kind == "FIFO":
        os.mkfifo(lock)
    else:
        lock.symlink_to("../.bashrc")
    with pytest.raises(InputError, match=r"index/\.lock: it is .+, not a lock; remove it"):
        find_or_make_index(path)
    assert lock.is_symlink() == (kind == "link") and len(list(lock.parent.iterdir())) == 1
    assert (tmp_path / ".bashrc").read_text() == "export A=1\n"


def test_index_is_in_the_cache_if_the_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    # Root may write anywhere, so a file stands where the folder would be.
    (tmp_path / "labels.json.index").write_text("")
    path, folder = indexed(tmp_path)
    assert folder.is_relative_to(cache / "retinanet-cpu/indexes")
    assert not find_or_make_index(path).was_made
    shutil.rmtree(cache)
    cache.write_text("")
    index = find_or_make_index(path)
    assert index.folder is None and len(index.annotations.boxes) == 50
    assert "cannot write an index" in capsys.readouterr().out


def test_index_folders_can_be_opened_directly(tmp_path: Path) -> None:
    path, folder = indexed(tmp_path)
    path.unlink()
    for named in (folder, folder.parent):
        assert len(open_annotations(named).boxes) == 50
    with pytest.raises(InputError, match="neither a JSON file nor an index"):
        open_annotations(tmp_path)


def test_invalid_json_leaves_no_index(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text('{"images": [}')
    with pytest.raises(InputError, match=r"labels\.json: line 1, column 13: not JSON"):
        open_annotations(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["labels.json"]


OPEN = """
import sys
from pathlib import Path
from typing import Any
import data.index
real = data.index.read_annotations
def read(path, **options):
    print("read", flush=True)
    import time; time.sleep(0.3)
    return real(path, **options)
data.index.read_annotations = read
print(len(data.index.open_annotations(Path(sys.argv[1])).boxes))
"""


def start_to_open(path: Path) -> subprocess.Popen[str]:
    return start_program(sys.executable, "-c", OPEN, path)


@pytest.mark.slow
def test_one_of_several_processes_creates_the_index(tmp_path: Path) -> None:
    path = labels(tmp_path)
    processes = [start_to_open(path) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [lines[-1] for lines in outputs] == ["50"] * 3
    assert sum("read" in lines for lines in outputs) == 1
    waited = sum(any("waiting for another process" in line for line in lines) for lines in outputs)
    assert waited <= 2


@pytest.mark.slow
def test_killed_process_does_not_block_the_next_one(tmp_path: Path) -> None:
    path = labels(tmp_path)
    process = start_to_open(path)
    assert process.stdout
    while "read" not in process.stdout.readline():
        assert process.poll() is None
    process.kill()
    process.wait()
    started = time.monotonic()
    assert find_or_make_index(path).was_made
    assert time.monotonic() - started < 30


def test_without_locks_the_first_complete_index_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = labels(tmp_path)
    real = data.index.write_index

    def write_second(folder: Path, *arguments: Any, **options: Any) -> None:
        real(folder, *arguments, **options)  # the other process, in between
        real(folder, *arguments, **options)

    monkeypatch.setattr(data.index, "write_index", write_second)
    index = find_or_make_index(path)
    assert index.folder and not index.was_made and len(index.annotations.boxes) == 50
