"""`retinanet export --format openvino`, in float32 and INT8, by OpenVINO and NNCF themselves."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data.annotations import Size
from retinanet.__main__ import main
from retinanet.detector import Detector
from retinanet.export import program as programs
from retinanet.model.retinanet import RetinaNet
from tests.support.commands import RunHere, error_line, run_program
from tests.support.random_detectors import write_detector

with_openvino = pytest.mark.openvino
USER = """
import numpy, openvino
network = openvino.Core().compile_model("model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
images = numpy.load("images.npy")
for number in (1, len(images)):
    found = network({"images": images[:number]})
numpy.savez("found.npz", **{name: found[name] for name in ("boxes", "scores", "labels")})
print(openvino.Core().read_model("model.xml").get_rt_info(["framework", "classes"]).value)
"""


def write_split(folder: Path, checkpoint: Path, *, sizes: list[Size]) -> tuple[Path, Path]:
    """Write pictures, and annotations with what the checkpoint's detector finds in them."""
    photos = folder / "photos"
    photos.mkdir()
    random, detector = np.random.default_rng(2), Detector.load(checkpoint, precision="float32")
    images, boxes = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, (height, width) in enumerate(sizes):
        noise = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        file = photos / f"{number}.png"
        Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file)
        images.append({"id": number, "file_name": file.name, "height": height, "width": width})
        for found in detector.predict(file, min_score=0.1).to_dicts():
            kept = {name: found[name] for name in ("bbox", "category_id")}
            area = kept["bbox"][2] * kept["bbox"][3]
            boxes.append({"id": len(boxes) + 1, "image_id": number, "area": area, **kept})
    categories = [{"id": i, "name": name} for i, name in ((7, "one"), (8, "two"), (44, "three"))]
    content = {"images": images, "annotations": boxes, "categories": categories}
    annotations = folder / "truth.json"
    annotations.write_text(json.dumps(content))
    assert len(boxes) > 20
    return annotations, photos


@pytest.fixture(scope="module")
def checkpoint(root: Path) -> Path:
    return write_detector(root / "run", resize="letterbox")


@pytest.fixture(scope="module")
def truth(root: Path, checkpoint: Path) -> tuple[str | Path, ...]:
    sizes = [(48, 80), (90, 60), (64, 64), (40, 96)]
    annotations, photos = write_split(root, checkpoint, sizes=sizes)
    return ("--annotations", annotations, "--images", photos)


@pytest.fixture(scope="module")
def program(root: Path, checkpoint: Path) -> Path:
    """The folder of the float32 program, and beside it `stdout.txt` of its export."""
    file = root / "program" / "model.xml"
    words = ("--checkpoint", checkpoint, "--format", "openvino", "--out", file)
    done = run_program(sys.executable, "-m", "retinanet", "export", *words)
    assert (done.returncode, done.stderr) == (0, "")
    (root / "stdout.txt").write_text(done.stdout)
    return file.parent


@with_openvino
@pytest.mark.slow
def test_program_runs_in_openvino_alone_with_the_checkpoints_boxes(
    checkpoint: Path, program: Path, run_here: RunHere
) -> None:
    stdout = (program.parent / "stdout.txt").read_text()
    assert "checked with openvino" in stdout and " equal boxes, largest" in stdout
    names = ["model.bin", "model.xml", "model.xml.json"]
    assert sorted(path.name for path in program.iterdir()) == names
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 64, 64), dtype=np.uint8)
    np.save(program / "images.npy", images)
    user = run_program(sys.executable, "-c", USER, cwd=program)
    assert user.returncode == 0, user.stderr
    assert json.loads(user.stdout) == ["one", "two", "three"]
    found = np.load(program / "found.npz")
    detector = Detector.load(checkpoint, precision="float32")
    for row, expected in enumerate(
        detector.predict(list(torch.from_numpy(images)), min_score=0.06)
    ):
        rows = found["scores"][row] >= 0.06
        assert len(expected) == rows.sum() > 5
        np.testing.assert_allclose(found["boxes"][row][rows], expected.boxes, atol=0.05)
        np.testing.assert_allclose(found["scores"][row][rows], expected.scores, atol=0.001)
        assert [(7, 8, 44)[label] for label in found["labels"][row][rows]] == list(expected.labels)
    out = ("--format", "openvino", "--out", program / "model.xml")
    again = run_here(main, "export", "--checkpoint", checkpoint, *out)
    assert "exists; give --overwrite" in error_line(again)


@pytest.fixture
def int8(
    checkpoint: Path,
    program: Path,
    truth: tuple[str | Path, ...],
    run_here: RunHere,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    """Return a function that exports to INT8 from the program at hand: tracing takes seconds."""

    def write(model: RetinaNet, file: Path, description: dict[str, Any]) -> None:
        for name in ("model.xml", "model.bin"):
            shutil.copy(program / name, file.with_suffix(Path(name).suffix))

    copying = replace(programs.INTERMEDIATE[".xml"], write=write)
    monkeypatch.setitem(programs.INTERMEDIATE, ".xml", copying)
    words = ("export", "--checkpoint", checkpoint, "--format", "openvino", "--int8", *truth)
    return lambda *more: run_here(main, *words, *more)


@with_openvino
@pytest.mark.slow
def test_int8_is_kept_within_the_limit_and_refused_beyond_it(
    int8: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "small.xml"
    file.with_suffix(".bin").write_bytes(b"older")
    assert "small.bin: exists" in error_line(int8("--out", file))
    refused = int8("--out", file, "--max-drop", "0", "--overwrite")
    assert (refused.returncode, refused.stderr) == (4, "")
    last = refused.stdout.splitlines()[-1]
    assert last.startswith(f"FAILED: {file}: not written: mAP ") and "--max-drop 0" in last
    assert [path.name for path in tmp_path.iterdir()] == ["small.bin"]
    assert file.with_suffix(".bin").read_bytes() == b"older"

    done = int8("--out", file, "--max-drop", "1", "--overwrite")
    assert (done.returncode, done.stderr) == (0, "")
    assert "calibration, images 4/4" in done.stdout and "INT8: mAP " in done.stdout
    names = ["small.bin", "small.xml", "small.xml.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert file.with_suffix(".bin").stat().st_size < 40e6  # 127 MB in float32
    measured = json.loads(file.with_name("small.xml.json").read_text())["int8"]
    # The truth is what the checkpoint finds, in a letterbox, in photos of several shapes.
    assert measured["map_float32"] > 0.95 > measured["map_int8"] > 0.2
    assert f"{measured['map_int8']:.4f}" in last and measured["images"] == 4


@with_openvino
@pytest.mark.slow
def test_interrupted_calibration_leaves_nothing(
    int8: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("retinanet.export.command.decode_annotated", interrupt)
    assert int8("--out", tmp_path / "small.xml").returncode == 130
    assert list(tmp_path.iterdir()) == []


@with_openvino
def test_missing_validation_images_are_named(
    detector: Path, run_here: RunHere, tmp_path: Path
) -> None:
    words = ("--format", "openvino", "--int8", "--out", tmp_path / "a.xml")
    done = run_here(main, "export", "--checkpoint", detector, *words)
    assert "validation images of its training are not here" in error_line(done)
