import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import data.index
from common.errors import InputError
from data.coco_json import read_annotations
from data.index import find_or_make_index, open_annotations
from tests.data.coco_files import random_content, write_json

ROOT = Path(__file__).parents[2]


def labels(folder: Path, *, boxes: int = 50, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    content = random_content(images=20, boxes=boxes, seed=seed)
    return write_json(folder / "labels.json", content)


def refuse_to_read(*_arguments: object, **_options: object) -> None:
    raise AssertionError("the JSON is read again")


def test_the_json_is_read_once_and_then_only_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = labels(tmp_path)
    first = find_or_make_index(path)
    assert first.was_made and first.folder and first.folder.parent == tmp_path / "labels.json.index"
    monkeypatch.setattr(data.index, "read_annotations", refuse_to_read)
    monkeypatch.setattr(data.index, "digest", refuse_to_read)
    second = find_or_make_index(path)
    assert not second.was_made and second.folder == first.folder
    assert second.annotations.box_ids.tolist() == first.annotations.box_ids.tolist()


def test_changed_content_gets_another_index_and_the_old_one_goes(tmp_path: Path) -> None:
    before = find_or_make_index(labels(tmp_path, boxes=50)).folder
    after = find_or_make_index(labels(tmp_path, boxes=51))
    assert before and after.folder and len(after.annotations.boxes) == 51
    assert not before.exists()


def test_a_file_of_equal_size_and_other_content_is_noticed(tmp_path: Path) -> None:
    path = labels(tmp_path)
    open_annotations(path)
    text = path.read_text()
    path.write_text(text.replace('"kind 90"', '"KIND 90"'))
    assert open_annotations(path).category_names[0] == "KIND 90"


def test_a_touched_or_copied_file_keeps_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = labels(tmp_path / "a")
    open_annotations(path)
    os.utime(path, (1, 1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    os.utime(tmp_path / "b" / "labels.json", (2, 2))
    monkeypatch.setattr(data.index, "read_annotations", refuse_to_read)
    for folder in ("a", "b"):
        assert not find_or_make_index(tmp_path / folder / "labels.json").was_made


@pytest.mark.parametrize("damage", ["cut short", "removed", "description"])
def test_a_damaged_index_is_made_again(tmp_path: Path, damage: str) -> None:
    path = labels(tmp_path)
    folder = find_or_make_index(path).folder
    assert folder
    if damage == "cut short":
        os.truncate(folder / "boxes.npy", 100)
    elif damage == "removed":
        (folder / "widths.npy").unlink()
    else:
        (folder / "index.json").write_text("{")
    found = find_or_make_index(path)
    assert found.was_made and len(found.annotations.boxes) == 50


def test_what_a_killed_process_has_left_is_cleared(tmp_path: Path) -> None:
    path = labels(tmp_path)
    home = tmp_path / "labels.json.index"
    (home / ".0123-format1.abc" / "index").mkdir(parents=True)
    (home / ".current.json.4711").write_text("{")
    folder = find_or_make_index(path).folder
    assert folder
    assert {entry.name for entry in home.iterdir()} == {folder.name, "current.json", ".lock"}


def test_a_folder_that_cannot_be_written_sends_the_index_to_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = labels(tmp_path / "data")
    # Root may write anywhere, so a file stands where the folder would be.
    (tmp_path / "data" / "labels.json.index").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = find_or_make_index(path)
    assert found.folder and found.folder.is_relative_to(tmp_path / "cache/retinanet-cpu/indexes")
    assert not find_or_make_index(path).was_made


def test_without_any_folder_to_write_the_json_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = labels(tmp_path)
    (tmp_path / "labels.json.index").write_text("")
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = find_or_make_index(path)
    assert found.folder is None and len(found.annotations.boxes) == 50
    assert "no index of" in capsys.readouterr().out


def test_an_index_and_the_folder_of_indexes_can_be_named_themselves(tmp_path: Path) -> None:
    path = labels(tmp_path)
    folder = find_or_make_index(path).folder
    path.unlink()
    assert folder
    for named in (folder, folder.parent):
        assert len(open_annotations(named).boxes) == 50
    with pytest.raises(InputError, match="neither a JSON file nor an index"):
        open_annotations(tmp_path)


def test_a_bad_json_leaves_no_index(tmp_path: Path) -> None:
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
    import time; time.sleep(1)
    return real(path, **options)
data.index.read_annotations = read
print(len(data.index.open_annotations(Path(sys.argv[1])).boxes))
"""


def test_of_several_processes_one_makes_the_index_while_the_others_wait(tmp_path: Path) -> None:
    path = labels(tmp_path)
    command = [sys.executable, "-c", OPEN, str(path)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [lines[-1] for lines in outputs] == ["50"] * 3
    assert sum("read" in lines for lines in outputs) == 1
    waited = sum(any("waiting for another process" in line for line in lines) for lines in outputs)
    assert waited <= 2


def test_a_process_killed_half_way_leaves_the_next_one_free(tmp_path: Path) -> None:
    path = labels(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", OPEN, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    while "read" not in process.stdout.readline():
        assert process.poll() is None
    process.kill()
    process.wait()
    started = time.monotonic()
    assert find_or_make_index(path).was_made
    assert time.monotonic() - started < 30


def test_the_index_equals_the_json(tmp_path: Path) -> None:
    path = labels(tmp_path)
    read, opened = read_annotations(path), open_annotations(path)
    assert opened.boxes.tolist() == read.boxes.tolist()
    assert list(opened.file_names) == list(read.file_names)
    current = json.loads((tmp_path / "labels.json.index" / "current.json").read_text())
    assert current["size"] == path.stat().st_size


def test_without_locks_the_slower_process_takes_the_index_of_the_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = labels(tmp_path)
    real = data.index.write_index

    def write_second(folder: Path, *arguments: Any, **options: Any) -> None:
        real(folder, *arguments, **options)  # the other process, in between
        real(folder, *arguments, **options)

    monkeypatch.setattr(data.index, "write_index", write_second)
    found = find_or_make_index(path)
    assert found.folder and not found.was_made and len(found.annotations.boxes) == 50
