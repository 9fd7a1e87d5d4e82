"""`python -m retinanet predict` on pictures."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retinanet.__main__ import main
from retinanet.predict.command import best_of
from tests.support.commands import RunHere
from tests.support.random_detectors import NAMES, write_detector

REPOSITORY = Path(__file__).resolve().parents[3]
MANY = 24


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_detector(tmp_path_factory.mktemp("run"))


def picture(file: Path, *, seed: int = 0, size: tuple[int, int] = (90, 60)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for number in range(MANY):
        picture(tmp_path / "many" / f"{number:02}.png", seed=number, size=(50 + number, 60))
    return tmp_path / "many"


def boxes_in(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text())


def by_file(boxes: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for box in boxes:
        found.setdefault(Path(box["file"]).name, []).append(box)
    return found


def test_one_picture_is_drawn_and_told_of(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    file, out, boxes = picture(tmp_path / "a.png"), tmp_path / "out", tmp_path / "boxes.json"
    words = ["--checkpoint", checkpoint, file, "--out", out, "--json", boxes, "--score", "0.1"]
    done = run_here(main, "predict", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{file} → {out / 'a.boxes.png'}: " in done.stdout and "1 picture, " in done.stdout
    found = boxes_in(boxes)
    assert found and set(found[0]) == {"file", "bbox", "score", "category_id", "category"}
    assert [box["score"] for box in found] == sorted((box["score"] for box in found), reverse=True)
    assert all(box["score"] >= 0.1 and box["category"] in NAMES for box in found)
    for x, y, width, height in (box["bbox"] for box in found):
        assert -0.01 <= x <= x + width <= 90.02 and -0.01 <= y <= y + height <= 60.02
    with Image.open(out / "a.boxes.png") as image:
        assert image.size == (720, 480)
    again = run_here(main, "predict", *words)
    assert again.returncode == 2 and "give --overwrite or another --out" in again.stderr
    assert run_here(main, "predict", *words, "--overwrite").returncode == 0
    assert boxes_in(boxes) == found


def test_the_same_command_works_again_and_replaces_nothing(
    checkpoint: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "a.png")
    picture(tmp_path / "photos" / "b.png")
    words = ["--checkpoint", checkpoint, "a.png", "photos", "--score", "0.1"]
    first = run_here(main, "predict", *words)
    assert (first.returncode, first.stderr) == (0, "")
    mine = tmp_path / "predictions" / "a.boxes.png"
    mine.write_text("edited")
    (tmp_path / "predictions" / "photos" / "b.boxes-2.png").symlink_to("nowhere")
    again = run_here(main, "predict", *words)
    assert (again.returncode, again.stderr) == (0, "") and "a.boxes-3.png" in again.stdout
    names = sorted(str(one.relative_to("predictions")) for one in Path().glob("predictions/**/*.*"))
    assert names == [
        "a.boxes-3.png",
        "a.boxes.png",
        "photos/b.boxes-2.png",
        "photos/b.boxes-3.png",
        "photos/b.boxes.png",
    ]
    assert mine.read_text() == "edited"
    assert run_here(main, "predict", *words, "--overwrite").returncode == 0
    assert mine.read_bytes().startswith(b"\x89PNG")
    refused = run_here(main, "predict", *words, "--out", "predictions")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "a.boxes.png: exists" in refused.stderr


def test_names_with_line_breaks_forge_no_line(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    file = picture(tmp_path / "a\nb.png: dog 0.99.png")
    done = run_here(main, "predict", "--checkpoint", checkpoint, file, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 and "a�b.png: dog" in done.stdout.splitlines()[0]
    assert "\n" not in best_of([("cat 0.9\nother.png: dog", 0.5)])


def test_batches_of_any_size_find_the_same_boxes(
    checkpoint: Path, tmp_path: Path, many: Path, run_here: RunHere
) -> None:
    found = []
    for size in (1, 7):
        boxes = tmp_path / f"{size}.json"
        words = ["--checkpoint", checkpoint, many, "--no-pictures", "--json", boxes]
        done = run_here(main, "predict", *words, "--batch-size", str(size), "--score", "0.2")
        assert done.returncode == 0, done.stderr
        assert f"pictures {MANY}/{MANY}" in done.stdout and f"{MANY} pictures, " in done.stdout
        found.append(by_file(boxes_in(boxes)))
    one, other = found
    assert one.keys() == other.keys() and list(one) == sorted(one)
    for name in one:
        assert len(one[name]) == len(other[name]), name
        for first, second in zip(one[name], other[name], strict=True):
            assert first["score"] == pytest.approx(second["score"], abs=2e-4)
    assert {path.name for path in tmp_path.iterdir()} == {"many", "1.json", "7.json"}


def test_an_unreadable_picture_ends_nothing(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    folder = tmp_path / "photos"
    for name in ("a.png", "c.png", "sub/d.png"):
        picture(folder / name)
    (folder / "b.jpg").write_bytes(b"\xff\xd8\xff no picture")
    (folder / "notes.txt").write_text("text")
    done = run_here(main, "predict", "--checkpoint", checkpoint, folder, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {folder / 'b.jpg'}: ") and done.stderr.count("\n") == 1
    assert "3 pictures, " in done.stdout
    assert "1 other file passed over; 1 could not be read, see above" in done.stdout
    drawn = sorted(str(one.relative_to(tmp_path / "out")) for one in tmp_path.glob("out/**/*.png"))
    assert drawn == ["photos/a.boxes.png", "photos/c.boxes.png", "photos/sub/d.boxes.png"]


def test_only_the_classes_that_are_asked_for(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    file, boxes = picture(tmp_path / "a.png"), tmp_path / "boxes.json"
    words = ["--checkpoint", checkpoint, file, "--no-pictures", "--score", "0.01", "--overwrite"]
    assert run_here(main, "predict", *words, "--json", boxes).returncode == 0
    every = boxes_in(boxes)
    assert {box["category"] for box in every} == set(NAMES)
    assert run_here(main, "predict", *words, "--json", boxes, "--class", "two").returncode == 0
    assert boxes_in(boxes) == [box for box in every if box["category"] == "two"]
    done = run_here(main, "predict", *words, "--class", "four")
    assert done.returncode == 2
    assert "--class: 'four' is none of the checkpoint's classes: one, three, two" in done.stderr


def test_a_photo_is_turned_as_its_camera_was_held(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    upright, boxes = tmp_path / "upright.png", tmp_path / "boxes.json"
    pixels = np.random.default_rng(1).integers(0, 256, (100, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(upright)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(np.rot90(pixels).copy()).save(tmp_path / "turned.png", exif=exif)
    words = ["--checkpoint", checkpoint, upright, tmp_path / "turned.png", "--no-pictures"]
    assert run_here(main, "predict", *words, "--score", "0.1", "--json", boxes).returncode == 0
    one, other = by_file(boxes_in(boxes)).values()
    assert [{**box, "file": ""} for box in one] == [{**box, "file": ""} for box in other]


def test_mistakes_are_told_before_the_weights_are_read(tmp_path: Path, run_here: RunHere) -> None:
    nothing = tmp_path / "none"
    done = run_here(main, "predict", "--checkpoint", nothing, tmp_path / "none.jpg")
    assert done.returncode == 2 and "none.jpg: no such picture, folder or video" in done.stderr
    file = picture(tmp_path / "a.png")
    done = run_here(main, "predict", "--checkpoint", nothing, file, file, "--out", tmp_path)
    assert done.returncode == 2 and "two outputs have this name" in done.stderr
    exported = tmp_path / "model.onnx"
    done = run_here(main, "predict", "--checkpoint", exported, file, "--out", tmp_path / "out")
    assert done.returncode == 2 and "is an exported model" in done.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_leaves_whole_files(checkpoint: Path, tmp_path: Path, many: Path) -> None:
    out, boxes = tmp_path / "out", tmp_path / "boxes.json"
    for number in range(MANY, 400):
        os.link(many / "00.png", many / f"{number}.png")
    command = [sys.executable, "-m", "retinanet", "predict", "--checkpoint", checkpoint, many]
    options = ["--out", out, "--json", boxes, "--score", "0.1", "--batch-size", "2"]
    process = subprocess.Popen(
        [*map(str, command), *map(str, options)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 90
    while not list(out.glob("many/*.png")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "SIGINT: ended before all was looked at" in output
    drawn = list((out / "many").iterdir())
    assert 0 < len(drawn) < 400
    for file in drawn:
        with Image.open(file) as image:
            image.load()
    told = by_file(boxes_in(boxes))
    assert {f"{name.removesuffix('.png')}.boxes.png" for name in told} <= {
        file.name for file in drawn
    }
