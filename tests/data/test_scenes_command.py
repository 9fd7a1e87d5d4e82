"""`python -m data scenes`: a folder as a labelling tool exports it."""

from pathlib import Path

import pytest
from PIL import Image

import data.synthetic
from data.__main__ import main
from data.coco_json import read_annotations
from tests.support.commands import RunHere


def test_photos_and_their_boxes_are_what_a_labelling_tool_exports(
    tmp_path: Path, run_here: RunHere
) -> None:
    out = tmp_path / "sub" / "my-photos"
    done = run_here(main, "scenes", "--out", out, "--images", "5", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "drawing scenes 5/5" in done.stdout and "5 images in" in done.stdout
    annotations = read_annotations(out / "annotations" / "instances_default.json")
    assert len(annotations) == 5 and len(annotations.boxes) > 0
    for index, name in enumerate(annotations.file_names):
        with Image.open(out / "images" / name) as picture:
            assert picture.size == (annotations.widths[index], annotations.heights[index])
    assert [path.name for path in out.parent.iterdir()] == ["my-photos"]


def test_another_seed_draws_other_photos_and_the_same_one_the_same(
    tmp_path: Path, run_here: RunHere
) -> None:
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        words = ("--out", tmp_path / name, "--images", "1", "--seed", seed)
        assert run_here(main, "scenes", *words).returncode == 0
    photo = Path("images") / "photo-00000.jpg"
    a, b, c = ((tmp_path / name / photo).read_bytes() for name in "abc")
    assert a == b != c


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, run_here: RunHere) -> None:
    out = tmp_path / "my-photos"
    out.mkdir()
    (out / "mine.jpg").write_bytes(b"mine")
    done = run_here(main, "scenes", "--out", out)
    assert done.returncode == 2
    assert done.stderr == f"error: --out: {out} exists; name a folder that is not there yet\n"
    assert [path.name for path in out.iterdir()] == ["mine.jpg"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, run_here: RunHere) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = run_here(main, "scenes", "--out", file / "my-photos", "--images", "1")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {file / 'my-photos'}: cannot be written: ")


def test_ctrl_c_leaves_nothing(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path, labels: Path, **_: object) -> None:
        (folder / "photo-00000.jpg").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(data.synthetic, "write_split", interrupted)
    assert run_here(main, "scenes", "--out", tmp_path / "my-photos").returncode == 130
    assert list(tmp_path.iterdir()) == []
