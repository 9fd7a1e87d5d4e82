"""`retinanet export`, and the runtimes that users run its files with."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from retinanet.__main__ import main
from retinanet.config_types import DEFAULT_ARCHITECTURE, Architecture
from retinanet.export import program
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import read_checkpoint
from tests.support.commands import RunHere, error_line, run_program
from tests.support.random_detectors import random_detector, write_detector


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, 3, 64, 64), dtype=np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "architecture"),
    [
        ("batch", DEFAULT_ARCHITECTURE),
        ("frozen", Architecture("resnet50", "v2")),
        pytest.param("frozen", DEFAULT_ARCHITECTURE, marks=pytest.mark.exhaustive),
    ],
)
def test_onnx_file_equals_checkpoint_and_describes_itself(
    norm: str,
    architecture: Architecture,
    tmp_path: Path,
    run_here: RunHere,
    images: np.ndarray,
) -> None:
    checkpoint = write_detector(tmp_path / "run", norm=norm, architecture=architecture)
    file = tmp_path / "new" / "model.onnx"
    done = run_here(main, "export", "--checkpoint", checkpoint, "--out", file)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert f"step 7, mAP 0.250 → {file}" in first
    assert "4 synthetic images" in second and "equal boxes" in second and "limit 0.05" in second
    assert sorted(path.name for path in file.parent.iterdir()) == ["model.onnx", "model.onnx.json"]

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert [(value.name, value.shape, value.type) for value in session.get_inputs()] == [
        ("images", ["N", 3, 64, 64], "tensor(uint8)")
    ]
    assert [(value.name, value.type) for value in session.get_outputs()] == [
        ("boxes", "tensor(float)"),
        ("scores", "tensor(float)"),
        ("labels", "tensor(int64)"),
    ]
    for number in (1, 3):
        boxes, scores, labels = session.run(None, {"images": images[:number]})
        assert boxes.shape == (number, 300, 4) and scores.shape == labels.shape == (number, 300)
        assert (scores[:, 0] > 0.05).all() and set(np.unique(labels)) <= {-1, 0, 1, 2}
    if architecture == DEFAULT_ARCHITECTURE:  # onnxruntime computes no group norm of zero images
        empty = session.run(None, {"images": np.zeros((0, 3, 64, 64), np.uint8)})
        assert empty[0].shape == (0, 300, 4)
    metadata = session.get_modelmeta().custom_metadata_map
    beside = json.loads(file.with_name("model.onnx.json").read_text())
    assert json.loads(metadata["classes"]) == beside["classes"] == ["one", "two", "three"]
    assert json.loads(metadata["category_ids"]) == [7, 8, 44]
    assert metadata["model"] == architecture.title
    assert metadata["image_size"] == "64" and metadata["step"] == "7" and metadata["map"] == "0.25"
    parts = read_checkpoint(checkpoint).state.parts
    assert metadata["checkpoint_sha256"] == parts["model.safetensors"].sha256
    assert "bilinear" in metadata["resize"] and "RGB" in metadata["input"]


TORCH = torch.__version__.split("+")[0]
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


@pytest.mark.slow
def test_letterbox_file_used_as_described_needs_only_torch_and_has_the_boxes_of_predict(
    tmp_path: Path, run_here: RunHere
) -> None:
    checkpoint = write_detector(tmp_path / "run", resize="letterbox")
    file, picture, boxes = tmp_path / "model.pt2", tmp_path / "wide.png", tmp_path / "boxes.json"
    pixels = np.random.default_rng(1).integers(0, 256, (40, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(picture)
    for arguments in (
        ("export", "--out", file, "--image", picture),
        ("predict", picture, "--out", tmp_path, "--json", boxes, "--precision", "float32"),
    ):
        done = run_here(main, *arguments, "--checkpoint", checkpoint, "--score", "0.1")
        assert (done.returncode, done.stderr) == (0, "")
        assert arguments[0] != "export" or f"checked with torch {TORCH}" in done.stdout
    user = run_program(sys.executable, "-W", "ignore", "-c", USER, cwd=tmp_path)
    assert user.returncode == 0, user.stderr
    assert user.stdout.startswith("['one', 'two', 'three'] 0.")
    predicted = json.loads(boxes.read_text())
    description = json.loads(file.with_name("model.pt2.json").read_text())
    assert "top left" in description["resize"] and "(124, 116, 104)" in description["resize"]
    # As the description says, without the code of this project: 96×40 becomes 64×27.
    resized = F.interpolate(
        torch.from_numpy(pixels)[None].permute(0, 3, 1, 2), (27, 64), mode="bilinear"
    )
    square = torch.tensor((124, 116, 104), dtype=torch.uint8).view(3, 1, 1).repeat(1, 64, 64)
    square[:, :27] = resized[0]
    found, scores, _ = torch.export.load(file).module()(square[None])
    ratios = torch.tensor([96 / 64, 40 / 27] * 2)
    found = (found[0] * ratios).clamp(min=0).minimum(torch.tensor([96.0, 40, 96, 40]))
    visible = (scores[0] > 0) & (found[:, 2:] > found[:, :2]).all(dim=1)
    assert 0 < len(predicted) == int(visible.sum()) < int((scores[0] > 0).sum())
    expected = np.array([box["bbox"] for box in predicted])
    expected[:, 2:] += expected[:, :2]
    np.testing.assert_allclose(found[visible].numpy(), expected, atol=0.05)
    np.testing.assert_allclose(
        scores[0][visible].numpy(), [box["score"] for box in predicted], atol=0.001
    )


def replace_exporter(monkeypatch: pytest.MonkeyPatch, model: RetinaNet, *, score: float) -> None:
    """Let the .pt2 format run `model`, whatever checkpoint is exported: tracing takes seconds."""
    detector = program.DetectorProgram(model, size=(64, 64), score_threshold=score)
    fake = replace(
        program.FORMATS[".pt2"],
        write=lambda model, file, description: file.touch(),
        load=lambda file, description: detector,
    )
    monkeypatch.setitem(program.FORMATS, ".pt2", fake)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "size"), [((), (64, 96)), (("--turned",), (96, 64))])
def test_rectangle_is_exported_for_either_orientation(
    tmp_path: Path, run_here: RunHere, words: tuple[str, ...], size: tuple[int, int]
) -> None:
    checkpoint = write_detector(tmp_path / "run", image_size=(64, 96))
    file = tmp_path / "model.safetensors"
    arguments = ("--checkpoint", checkpoint, "--out", file, "--format", "torchvision")
    done = run_here(main, "export", *arguments, *words)
    # Checked against torchvision's model, which resizes to its fixed size by itself.
    assert done.returncode == 0 and " equal boxes, largest differences " in done.stdout, done.stderr
    assert f"note: takes {size[1]}×{size[0]} pixels for every picture" in done.stdout
    assert ("--turned" in done.stdout) == (not words)
    description = json.loads(file.with_name("model.safetensors.json").read_text())
    assert description["image_size"] == list(size)
    assert f"to {size[0]} × {size[1]}," in description["resize"]


@pytest.mark.slow
def test_program_without_detections_is_kept_with_a_note(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_exporter(monkeypatch, random_detector(score=-9.0), score=0.9)
    checkpoint = write_detector(tmp_path / "run", score=-9.0)
    file = tmp_path / "model.pt2"
    done = run_here(main, "export", "--checkpoint", checkpoint, "--out", file, "--score", "0.9")
    assert done.returncode == 0 and file.exists()
    assert "no boxes" in done.stdout and "--image" in done.stdout


@pytest.mark.slow
def test_file_with_other_detections_is_not_kept(
    detector: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_exporter(monkeypatch, random_detector(score=-2.0), score=0.05)
    out = tmp_path / "out"
    done = run_here(main, "export", "--checkpoint", detector, "--out", out / "model.pt2")
    assert done.returncode == 2 and done.stdout == ""
    assert "model.pt2: not written: " in done.stderr and done.stderr.count("\n") == 1
    assert list(out.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("option", ["export", "evaluate", "report"])
def test_files_of_the_checkpoint_are_not_replaced(
    detector: Path, run_here: RunHere, option: str
) -> None:
    weights = detector / "model.safetensors"
    before = weights.read_bytes()
    words: dict[str, tuple[str | Path, ...]] = {
        "export": ("--checkpoint", detector, "--format", "torchvision", "--out", weights),
        "evaluate": ("--checkpoint", detector, "--json", weights),
        "report": (detector, "--out", weights),
    }
    done = run_here(main, option, *words[option], "--overwrite")
    assert f"would replace {weights}, which this command reads" in error_line(done)
    assert weights.read_bytes() == before


@pytest.fixture
def folder(tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with two files, of a machine without runtimes for programs."""
    for package in ("openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    for name in ("old.onnx", "old.pt2"):
        Path(name).write_text("mine")
    return tmp_path


def test_full_disk_is_an_error_on_one_line(
    folder: Path, detector: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(folder)._replace(free=90_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    done = run_here(main, "export", "--checkpoint", detector, "--out", "new/a.pt2")
    assert error_line(done).startswith("error: new: 90 MB are free and 1")
    assert list(folder.glob("new/*")) == []


EXTENSIONS = ".pth (torch.load) or .safetensors"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "m"), ".onnx (ONNX)"),
        (("--out", "old.pt2"), "old.pt2: exists; give --overwrite"),
        (("--out", "free.onnx"), "onnxruntime not installed; run `make serving`"),
        (("--out", "a.xml"), ".xml needs --format openvino"),
        (("--out", "a.xml", "--format", "openvino"), "not installed; run `make openvino`"),
        (("--out", "a.onnx", "--format", "openvino"), "OpenVINO's IR; use .xml"),
        (("--out", "a.pt2", "--int8"), "--int8: needs --format openvino"),
        (("--out", "a.pt2", "--images", "a"), "--annotations and --images: need --int8"),
        (("--out", "a.pt2", "--image", "none.jpg"), "none.jpg: no such image"),
        (("--out", "a.pth"), "--format torchvision"),
        (("--out", "a.safetensors"), "--format torchvision"),
        (("--out", "a.onnx", "--format", "torchvision"), EXTENSIONS),
        (("--out", "a", "--format", "torchvision"), "(no extension)"),
        (("--out", "a.pt2", "--checkpoint", "none"), "none: does not exist"),
        (("--out", "a.pt2", "--checkpoint", "old.onnx"), "is an exported model; give --checkpoint"),
    ],
)
def test_wrong_options_are_errors_on_one_line(
    words: tuple[str, ...], message: str, folder: Path, detector: Path, run_here: RunHere
) -> None:
    done = run_here(main, "export", "--checkpoint", detector, *words)
    assert message in error_line(done) and done.stdout == ""
    assert [file.read_text() for file in folder.iterdir()] == ["mine", "mine"]
