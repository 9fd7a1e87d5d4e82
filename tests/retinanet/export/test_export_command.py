"""`python -m retinanet export`, its files run by what their users have."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from retinanet.__main__ import main
from retinanet.export import program
from retinanet.training.checkpoint import read_checkpoint
from tests.support.commands import RunHere
from tests.support.random_detectors import random_detector, write_detector


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_detector(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, 3, 64, 64), dtype=np.uint8)


@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_onnx_finds_what_the_checkpoint_finds_and_says_what_it_is(
    norm: str, tmp_path: Path, run_here: RunHere, images: np.ndarray
) -> None:
    checkpoint = write_detector(tmp_path / "run", norm=norm)
    file = tmp_path / "new" / "model.onnx"
    done = run_here(main, "export", "--checkpoint", checkpoint, "--out", file)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert f"step 7, mAP 0.250 → {file}" in first
    assert "4 drawn scenes, as the run's validation images are not here: the same " in second
    assert "(0.05 allowed)" in second
    assert sorted(one.name for one in file.parent.iterdir()) == ["model.onnx", "model.onnx.json"]

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert [(one.name, one.shape, one.type) for one in session.get_inputs()] == [
        ("images", ["N", 3, 64, 64], "tensor(uint8)")
    ]
    assert [(one.name, one.type) for one in session.get_outputs()] == [
        ("boxes", "tensor(float)"),
        ("scores", "tensor(float)"),
        ("labels", "tensor(int64)"),
    ]
    for number in (1, 3):
        boxes, scores, labels = session.run(None, {"images": images[:number]})
        assert boxes.shape == (number, 300, 4) and scores.shape == labels.shape == (number, 300)
        assert (scores[:, 0] > 0.05).all() and set(np.unique(labels)) <= {-1, 0, 1, 2}
    black = session.run(None, {"images": np.zeros((0, 3, 64, 64), np.uint8)})
    assert black[0].shape == (0, 300, 4)
    metadata = session.get_modelmeta().custom_metadata_map
    beside = json.loads(file.with_name("model.onnx.json").read_text())
    assert json.loads(metadata["classes"]) == beside["classes"] == ["one", "two", "three"]
    assert json.loads(metadata["category_ids"]) == [7, 8, 44]
    assert metadata["image_size"] == "64" and metadata["step"] == "7" and metadata["map"] == "0.25"
    parts = read_checkpoint(checkpoint).state.parts
    assert metadata["checkpoint_sha256"] == parts["model.safetensors"].sha256
    assert "bilinear" in metadata["resize"] and "RGB" in metadata["input"]


USER = """
import json, sys
import torch, torchvision
extra = {"description.json": ""}
detect = torch.export.load("model.pt2", extra_files=extra).module()
for number in (1, 3):
    boxes, scores, labels = detect(torch.full((number, 3, 64, 64), 100, dtype=torch.uint8))
    assert boxes.shape == (number, 300, 4), boxes.shape
assert "retinanet" not in sys.modules
print(json.loads(extra["description.json"])["classes"], float(scores[0, 0]))
"""


def test_a_pt2_file_needs_torch_and_torchvision_alone(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    file = tmp_path / "model.pt2"
    done = run_here(main, "export", "--checkpoint", checkpoint, "--out", file, "--score", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"checked by torch {torch.__version__.split('+')[0]}" in done.stdout
    user = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", USER],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert user.returncode == 0, user.stderr
    assert user.stdout.startswith("['one', 'two', 'three'] 0.")


def test_a_program_that_finds_nothing_is_kept_and_told_of(
    tmp_path: Path, run_here: RunHere
) -> None:
    checkpoint = write_detector(tmp_path / "run", score=-9.0)
    file = tmp_path / "model.pt2"
    done = run_here(main, "export", "--checkpoint", checkpoint, "--out", file, "--score", "0.9")
    assert done.returncode == 0 and file.exists()
    assert "which says little; give --image" in done.stdout


def test_a_file_that_finds_something_else_is_not_kept(
    checkpoint: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter with a fault: it writes another model's weights."""
    other = random_detector(score=-2.0)

    def write(right: object, file: Path, description: dict[str, Any]) -> None:
        wrong = program.DetectorProgram(other, image_size=64, score_threshold=0.05)
        program.write_torch(program.exported(wrong), file, description)

    faulty = replace(program.FORMATS[".pt2"], write=write)
    monkeypatch.setitem(program.FORMATS, ".pt2", faulty)
    out = tmp_path / "out"
    done = run_here(main, "export", "--checkpoint", checkpoint, "--out", out / "model.pt2")
    assert done.returncode == 2 and done.stdout == ""
    assert "model.pt2: not kept: " in done.stderr and done.stderr.count("\n") == 1
    assert list(out.iterdir()) == []


def test_mistakes_are_told_in_a_line_before_any_work(
    checkpoint: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*words: str | Path) -> str:
        done = run_here(main, "export", *words)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
        return done.stderr

    there = tmp_path / "there.onnx"
    there.write_text("mine")
    free = tmp_path / "free.onnx"
    assert ".onnx (ONNX) or .pt2" in refusal("--checkpoint", checkpoint, "--out", tmp_path / "m")
    assert "give --overwrite" in refusal("--checkpoint", checkpoint, "--out", there)
    assert there.read_text() == "mine"
    said = refusal("--checkpoint", there, "--out", free)
    assert "is an exported model" in said and "runs/NAME/checkpoints/best" in said
    missing = tmp_path / "none.jpg"
    said = refusal("--checkpoint", checkpoint, "--out", free, "--image", missing)
    assert f"{missing}: no such image" in said
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as where it is not installed
    said = refusal("--checkpoint", checkpoint, "--out", free)
    assert "onnxruntime not installed; run `make serving`" in said
    assert [one.name for one in tmp_path.iterdir()] == ["there.onnx"]
