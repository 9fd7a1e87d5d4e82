"""`retinanet predict` on pictures."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import retinanet.detector as detector_module
from retinanet.__main__ import main
from retinanet.detector import Detector
from retinanet.predict.command import format_boxes
from tests.support.commands import RunHere, error_line
from tests.support.random_detectors import NAMES

pytestmark = pytest.mark.slow
MANY = 12  # more than get a line each


def write_picture(file: Path, *, seed: int = 0, size: tuple[int, int] = (90, 60)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for number in range(MANY):
        write_picture(tmp_path / "many" / f"{number:02}.png", seed=number, size=(50 + number, 60))
    return tmp_path / "many"


def read_boxes(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text())


def group_by_file(boxes: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for box in boxes:
        groups.setdefault(Path(box["file"]).name, []).append(box)
    return groups


def test_picture_is_drawn_and_its_boxes_are_written(
    detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    file, out, boxes = write_picture(tmp_path / "a.png"), tmp_path / "out", tmp_path / "boxes.json"
    arguments = ["--checkpoint", detector, file, "--out", out, "--json", boxes, "--score", "0.1"]
    done = run_here(main, "predict", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{file} → {out / 'a.boxes.png'}: " in done.stdout and "1 picture, " in done.stdout
    content = read_boxes(boxes)
    assert content and set(content[0]) == {"file", "bbox", "score", "category_id", "category"}
    assert [box["score"] for box in content] == sorted(
        (box["score"] for box in content), reverse=True
    )
    assert all(box["score"] >= 0.1 and box["category"] in NAMES for box in content)
    for x, y, width, height in (box["bbox"] for box in content):
        assert -0.01 <= x <= x + width <= 90.02 and -0.01 <= y <= y + height <= 60.02
    with Image.open(out / "a.boxes.png") as image:
        assert image.size == (720, 480)
    again = run_here(main, "predict", *arguments)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert run_here(main, "predict", *arguments, "--overwrite").returncode == 0
    assert read_boxes(boxes) == content
    drawn = write_picture(out / "a.boxes.png")
    itself = run_here(main, "predict", *arguments[:3], drawn, *arguments[3:], "--overwrite")
    assert f"would replace {drawn}, which this command reads" in error_line(itself)
    itself = run_here(main, "predict", "--overwrite", *arguments, "--json", file)
    assert f"would replace {file}, which this command reads" in error_line(itself)
    weights = detector / "model.safetensors"
    itself = run_here(main, "predict", "--overwrite", *arguments, "--json", weights)
    assert f"would replace {weights}, which this command reads" in error_line(itself)


def test_precision_is_that_of_the_option(
    detector: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.machine.cpu_flags", lambda: {"avx512bw"})
    file, scores = write_picture(tmp_path / "a.png"), {}
    for precision, taken, notes in (("auto", "float32", 0), ("bf16", "bf16", 1)):
        boxes = tmp_path / f"{precision}.json"
        options = ("--precision", precision, "--no-pictures", "--json", boxes)
        done = run_here(main, "predict", "--checkpoint", detector, file, *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert f" per second in {taken} → " in done.stdout
        assert done.stdout.count("note: --precision bf16: this processor (AVX-512 with") == notes
        scores[taken] = [box["score"] for box in read_boxes(boxes)[:5]]
    assert scores["bf16"] != scores["float32"] == pytest.approx(scores["bf16"], abs=0.05)


def test_same_command_again_numbers_its_outputs(
    detector: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "a.png")
    write_picture(tmp_path / "photos" / "b.png")
    arguments = ["--checkpoint", detector, "a.png", "photos", "--score", "0.1"]
    first = run_here(main, "predict", *arguments)
    assert (first.returncode, first.stderr) == (0, "")
    mine = tmp_path / "predictions" / "a.boxes.png"
    mine.write_text("edited")
    (tmp_path / "predictions" / "photos" / "b.boxes-2.png").symlink_to("nowhere")
    again = run_here(main, "predict", *arguments)
    assert (again.returncode, again.stderr) == (0, "") and "a.boxes-3.png" in again.stdout
    names = sorted(
        str(file.relative_to("predictions")) for file in Path().glob("predictions/**/*.*")
    )
    assert names == [
        "a.boxes-3.png",
        "a.boxes.png",
        "photos/b.boxes-2.png",
        "photos/b.boxes-3.png",
        "photos/b.boxes.png",
    ]
    assert mine.read_text() == "edited"
    assert run_here(main, "predict", *arguments, "--overwrite").returncode == 0
    assert mine.read_bytes().startswith(b"\x89PNG")
    refused = run_here(main, "predict", *arguments, "--out", "predictions")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "a.boxes.png: exists" in refused.stderr


def test_line_breaks_in_names_are_replaced(
    detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    file = write_picture(tmp_path / "a\nb.png: dog 0.99.png")
    done = run_here(main, "predict", "--checkpoint", detector, file, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 and "a�b.png: dog" in done.stdout.splitlines()[0]
    assert "\n" not in format_boxes([("cat 0.9\nother.png: dog", 0.5)])


def test_boxes_do_not_depend_on_batch_size(
    detector: Path, tmp_path: Path, many: Path, run_here: RunHere
) -> None:
    results = []
    for size in (1, 5):
        boxes = tmp_path / f"{size}.json"
        arguments = ["--checkpoint", detector, many, "--no-pictures", "--json", boxes]
        arguments += ["--precision", "float32"]
        done = run_here(main, "predict", *arguments, "--batch-size", str(size), "--score", "0.2")
        assert done.returncode == 0, done.stderr
        assert f"pictures {MANY}/{MANY}" in done.stdout and f"{MANY} pictures, " in done.stdout
        results.append(group_by_file(read_boxes(boxes)))
    single, batched = results
    assert single.keys() == batched.keys() and list(single) == sorted(single)
    for name in single:
        assert len(single[name]) == len(batched[name]), name
        for first, second in zip(single[name], batched[name], strict=True):
            assert first["score"] == pytest.approx(second["score"], abs=2e-4)
    assert {path.name for path in tmp_path.iterdir()} == {"many", "1.json", "5.json"}


def test_unreadable_picture_is_skipped_with_an_error(
    detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    folder = tmp_path / "photos"
    for name in ("a.png", "c.png", "sub/d.png"):
        write_picture(folder / name)
    (folder / "b.jpg").write_bytes(b"\xff\xd8\xff no picture")
    (folder / "notes.txt").write_text("text")
    done = run_here(main, "predict", "--checkpoint", detector, folder, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {folder / 'b.jpg'}: ") and done.stderr.count("\n") == 1
    assert "3 pictures, " in done.stdout
    assert "1 other file skipped; 1 could not be read" in done.stdout
    drawn = sorted(
        str(file.relative_to(tmp_path / "out")) for file in tmp_path.glob("out/**/*.png")
    )
    assert drawn == ["photos/a.boxes.png", "photos/c.boxes.png", "photos/sub/d.boxes.png"]


def test_class_option_selects_classes(detector: Path, tmp_path: Path, run_here: RunHere) -> None:
    file, boxes = write_picture(tmp_path / "a.png"), tmp_path / "boxes.json"
    arguments = ["--checkpoint", detector, file, "--no-pictures", "--score", "0.01", "--overwrite"]
    assert run_here(main, "predict", *arguments, "--json", boxes).returncode == 0
    all_boxes = read_boxes(boxes)
    assert {box["category"] for box in all_boxes} == set(NAMES)
    assert run_here(main, "predict", *arguments, "--json", boxes, "--class", "two").returncode == 0
    assert read_boxes(boxes) == [box for box in all_boxes if box["category"] == "two"]
    done = run_here(main, "predict", *arguments, "--class", "four")
    assert done.returncode == 2
    assert "--class: 'four' is not a class of the checkpoint: one, three, two" in done.stderr


def test_errors_come_before_the_weights_are_read(tmp_path: Path, run_here: RunHere) -> None:
    nothing = tmp_path / "none"
    done = run_here(main, "predict", "--checkpoint", nothing, tmp_path / "none.jpg")
    assert done.returncode == 2 and f"{nothing}: does not exist" in done.stderr
    nothing.mkdir()
    (nothing / "state.json").write_text("no checkpoint")
    done = run_here(main, "predict", "--checkpoint", nothing, tmp_path / "none.jpg")
    assert done.returncode == 2 and "none.jpg: no such picture" in done.stderr
    file = write_picture(tmp_path / "a.png")
    done = run_here(main, "predict", "--checkpoint", nothing, file, file, "--out", tmp_path)
    assert done.returncode == 2 and "two outputs" in done.stderr
    exported = tmp_path / "model.onnx"
    done = run_here(main, "predict", "--checkpoint", exported, file, "--out", tmp_path / "out")
    assert done.returncode == 2 and "is an exported model" in done.stderr
    assert not (tmp_path / "out").exists()


def test_sigint_leaves_complete_files(
    detector: Path,
    tmp_path: Path,
    many: Path,
    run_here: RunHere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    detect = Detector.detect

    def detect_and_interrupt(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return detect(*arguments, **options)

    monkeypatch.setattr(Detector, "detect", detect_and_interrupt)
    out, boxes = tmp_path / "out", tmp_path / "boxes.json"
    options = ["--out", out, "--json", boxes, "--score", "0.1", "--batch-size", "2"]
    done = run_here(main, "predict", "--checkpoint", detector, many, *options)
    assert done.returncode == 130 and "SIGINT: stopped before the end" in done.stdout
    drawn = sorted((out / "many").iterdir())
    assert [file.name for file in drawn] == ["00.boxes.png", "01.boxes.png"]
    for file in drawn:
        with Image.open(file) as image:
            image.load()
    assert set(group_by_file(read_boxes(boxes))) == {"00.png", "01.png"}


def test_tiles_find_small_objects_and_leave_small_pictures_as_they_are(
    detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    write_picture(tmp_path / "photos" / "large.png", size=(150, 100))
    write_picture(tmp_path / "photos" / "small.png", seed=1, size=(64, 60))
    words = ("--checkpoint", detector, tmp_path / "photos", "--precision", "float32")
    found = {}
    for name, more in (("plain", ()), ("tiles", ("--tiles", "64", "--batch-size", "3"))):
        boxes = tmp_path / f"{name}.json"
        done = run_here(main, "predict", *words, "--no-pictures", "--json", boxes, *more)
        assert (done.returncode, done.stderr) == (0, ""), name
        found[name] = group_by_file(read_boxes(boxes))
        assert ("pictures 0/2  tile 3 of 7" in done.stdout) == bool(more)
    small, in_tiles = (found[name]["small.png"] for name in ("plain", "tiles"))
    assert [box["bbox"] for box in small] == [box["bbox"] for box in in_tiles] and small
    large = found["tiles"]["large.png"]
    assert len(large) > len(found["plain"]["large.png"])
    assert max(box["bbox"][0] + box["bbox"][2] for box in large) > 100
    result = Detector.load(detector, precision="float32").predict(
        tmp_path / "photos" / "large.png", tiles=64, batch_size=3
    )
    assert [{**box, "file": ""} for box in result.to_dicts()] == [
        {**box, "file": ""} for box in large
    ]
    alone = run_here(main, "predict", *words, "--overlap", "0.3")
    assert "error: overlap: only with tiles" in error_line(alone)


def test_ctrl_c_ends_between_two_batches_of_tiles(
    detector: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, boxes = write_picture(tmp_path / "a.png", size=(300, 300)), tmp_path / "boxes.json"
    calls: list[int] = []
    plain = detector_module.detect_pictures

    def detect_and_signal(*words: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(*words, **settings)

    monkeypatch.setattr(detector_module, "detect_pictures", detect_and_signal)
    words = ("--checkpoint", detector, file, "--no-pictures", "--json", boxes, "--tiles", "64")
    done = run_here(main, "predict", *words)
    assert done.returncode == 130 and len(calls) == 2, done.stderr
    assert "SIGINT: stopped before the end" in done.stdout and read_boxes(boxes) == []
