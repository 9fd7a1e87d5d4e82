"""`retinanet export --format torchvision`, loaded by torchvision's own RetinaNet."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from data.decoding import decode_image
from data.transforms import fit_image
from retinanet.__main__ import main
from retinanet.config_types import DEFAULT_ARCHITECTURE, Architecture
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import detect_batch
from retinanet.export.command import compare, split_detections
from retinanet.export.state_dict import load_state_dict, write_state_dict
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.detector_weights import read_detector
from tests.support.commands import RunHere
from tests.support.random_detectors import NAMES, random_detector, write_detector
from tests.support.torchvision_models import torchvision_retinanet

PHOTOS = Path(__file__).resolve().parents[4] / "shared" / "data" / "coco128" / "train2017"
SIZE = 192


def assert_equal_detections(model: RetinaNet, images: Tensor, file: Path) -> int:
    """Assert that torchvision finds the same to 1e-4 (pixels, scores); return how many boxes."""
    description = {
        "classes": [f"class {index}" for index in range(40)],
        "image_size": images.shape[-1],
        "score_threshold": 0.05,
    }
    write_state_dict(model, file, description)
    found = split_detections(load_state_dict(file, description)(images))
    forward = torch_forward(model, precision="float32")
    detections = detect_batch(model, images, forward=forward, score_threshold=0.05)
    parts = [
        # Not in order of the scores, since rounding may swap nearly equal ones.
        compare(expected, actual, score_threshold=0.05)
        for expected, actual in zip(detections, found, strict=True)
    ]
    equal = sum(part.equal for part in parts)
    assert sum(part.differing for part in parts) == 0
    # Rounding may decide at a limit: the threshold, the IoU of suppression, the number of boxes.
    assert sum(part.at_the_edge for part in parts) <= 0.01 * equal
    assert max(part.score_difference for part in parts) < 1e-4
    # float32 has 24 bits: rounding alone is some 1e-4 pixels in coordinates of hundreds of pixels.
    # Group norms divide by a deviation that is rounded too, and deep bodies round more often.
    limit = 2e-4 if len(model.backbone.body.layer3) > 6 else 1e-4
    limit = 5e-4 if model.variant.norm_groups else limit
    assert max(part.box_difference for part in parts) < max(limit, 2e-6 * images.shape[-1])
    return equal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "suffix", "architecture"),
    [
        ("frozen", ".pth", DEFAULT_ARCHITECTURE),
        ("batch", ".safetensors", DEFAULT_ARCHITECTURE),
        ("frozen", ".pth", Architecture("resnet50", "v2")),
        pytest.param(
            "batch", ".safetensors", Architecture("resnet101", "v1"), marks=pytest.mark.exhaustive
        ),
    ],
)
def test_torchvision_finds_the_same_in_noise(
    norm: str, suffix: str, architecture: Architecture, tmp_path: Path
) -> None:
    model = random_detector(norm=norm, classes=40, architecture=architecture)
    model = model.to(memory_format=torch.channels_last)
    images = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)
    )
    assert assert_equal_detections(model, images, tmp_path / f"a{suffix}") > 20


@pytest.mark.slow
@pytest.mark.skipif(not PHOTOS.is_dir(), reason=f"{PHOTOS} is missing")
def test_torchvision_finds_the_same_in_photos(tmp_path: Path) -> None:
    model = random_detector(classes=40, image_size=SIZE).to(memory_format=torch.channels_last)
    photos = [decode_image(file) for file in sorted(PHOTOS.glob("*.jpg"))[:2]]
    images = torch.stack([fit_image(photo, size=(SIZE, SIZE), resize="square") for photo in photos])
    assert assert_equal_detections(model, images, tmp_path / "a.pth") > 100


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["frozen", pytest.param("batch", marks=pytest.mark.exhaustive)])
def test_file_loads_strictly_with_both_kinds_of_norms_and_is_converted_back(
    norm: str, detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    checkpoint = detector if norm == "frozen" else write_detector(tmp_path / "run", norm=norm)
    files = [tmp_path / name for name in ("a.pth", "a.safetensors")]
    for file in files:
        options = ("--format", "torchvision", "--out", file, "--score", "0.1")
        done = run_here(main, "export", "--checkpoint", checkpoint, *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert "checked with torchvision" in done.stdout
        beside = json.loads(file.with_name(f"{file.name}.json").read_text())
        assert beside["classes"] == list(NAMES) and "torchvision" in beside["model"]
    pickled, safe = torch.load(files[0], weights_only=True), load_file(files[1])
    assert pickled.keys() == safe.keys()
    weights = read_checkpoint(checkpoint).tensors("model.safetensors")
    for layer in (nn.BatchNorm2d, FrozenBatchNorm2d):
        model = torchvision_retinanet(len(NAMES), norm=layer)
        model.load_state_dict(pickled, strict=True)
        loaded = model.state_dict()
        names = [name for name in loaded if "num_batches_tracked" not in name]
        assert all(torch.equal(loaded[name], weights[name]) for name in names)
        assert {name for name in weights if "num_batches_tracked" not in name} == set(names)
    assert all(torch.equal(safe[name], tensor) for name, tensor in pickled.items())
    # The .safetensors file is a detector to start from, the .pth one after a conversion.
    assert read_detector(str(files[1])).names == NAMES
    classes, again = tmp_path / "classes.txt", tmp_path / "again"
    classes.write_text("\n".join(NAMES))
    converting = ("--detector", files[0], "--classes", classes, "--out", again, "--trust")
    done = run_here(main, "convert", *converting, "--image-size", "64")
    assert (done.returncode, done.stderr) == (0, "")
    converted = read_checkpoint(again).tensors("model.safetensors")
    # A converted detector's norms are frozen, which count no batches.
    assert converted.keys() == set(names)
    assert all(torch.equal(converted[name], weights[name]) for name in names)
