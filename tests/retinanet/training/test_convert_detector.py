"""`python -m retinanet convert --detector`, on files as torchvision's and MLPerf's scripts save."""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models import resnext50_32x4d
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection import retinanet_resnet50_fpn
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from common.errors import InputError
from data.annotations import UNNAMED
from retinanet.__main__ import main
from retinanet.training.build import unpickle_weights
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.convert import detector_tensors, read_class_map, require_free_folder
from tests.support.commands import RunHere
from tests.support.random_detectors import random_detector

OUTPUTS = 5
CATEGORIES = [{"id": 4, "name": "four"}, {"id": 1, "name": "one"}, {"id": 3, "name": "three"}]
SIZE = 64

State = dict[str, Tensor]


class Malice:
    """What a file from the network might carry."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("made-by-a-pickle",)


def old_spelling(key: str) -> str:
    """As MLPerf's reference, a copy of an older torchvision, spells it."""
    for block in range(3):
        for kind in ("inner", "layer"):
            key = key.replace(f"{kind}_blocks.{block}.0.", f"{kind}_blocks.{block}.")
    for new, old in (("0.0", "0"), ("1.0", "2"), ("2.0", "4"), ("3.0", "6")):
        key = key.replace(f"_head.conv.{new}.", f"_head.conv.{old}.")
    return key


def as_scripts_save(state: State) -> dict[str, Any]:
    """The dict of torchvision's references/detection/train.py and of MLPerf's reference."""
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.sum().backward()
    optimizer.step()
    return {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [16, 22]).state_dict(),
        "args": argparse.Namespace(data_path="/data", epochs=26, lr_steps=[16, 22], amp=False),
        "epoch": 25,
    }


@pytest.fixture(scope="module")
def theirs() -> TorchvisionRetinaNet:
    """torchvision's own model, that finds boxes in whatever it sees."""
    body = resnext50_32x4d(weights=None)
    backbone = _resnet_fpn_extractor(
        body, 5, returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(256, 256)
    )
    model = TorchvisionRetinaNet(backbone, OUTPUTS, fixed_size=(SIZE, SIZE)).eval()
    model.load_state_dict(
        random_detector(classes=OUTPUTS, image_size=SIZE).state_dict(), strict=False
    )
    return model


@pytest.fixture(scope="module")
def checkpoint(
    theirs: TorchvisionRetinaNet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """torchvision's model as a checkpoint of ours, by the command."""
    folder = tmp_path_factory.mktemp("convert")
    state = {f"module.{key}": value for key, value in theirs.state_dict().items()}
    torch.save(as_scripts_save(state), folder / "model_25.pth")
    (folder / "classes.json").write_text(json.dumps({"categories": CATEGORIES}))
    with pytest.MonkeyPatch.context() as patch:
        words = ("--detector", folder / "model_25.pth", "--classes", folder / "classes.json")
        options = ("--out", folder / "made", "--image-size", str(SIZE), "--trust")
        patch.setattr("sys.argv", ["command", "convert", *map(str, (*words, *options))])
        assert main() == 0
    (folder / "model_25.pth").unlink()
    yield folder / "made"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(3).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def content_of(state: object) -> bytes:
    file = BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_detections_are_torchvisions(
    checkpoint: Path,
    theirs: TorchvisionRetinaNet,
    photo: Path,
    tmp_path: Path,
    run_here: RunHere,
) -> None:
    pixels = torch.from_numpy(np.array(Image.open(photo))).permute(2, 0, 1) / 255
    with torch.no_grad():
        [expected] = theirs([pixels])
    file = tmp_path / "boxes.json"
    words = ("--checkpoint", checkpoint, photo, "--json", file, "--no-pictures")
    done = run_here(main, "predict", *words, "--score", "0.0501")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(file.read_text())
    kept = expected["scores"] > 0.0501
    assert kept.sum() > 20 and len(found) == kept.sum()
    boxes = torch.tensor([box["bbox"] for box in found])
    boxes[:, 2:] += boxes[:, :2]
    assert torch.allclose(boxes, expected["boxes"][kept], atol=0.03)
    scores = torch.tensor([box["score"] for box in found])
    assert torch.allclose(scores, expected["scores"][kept], atol=2e-4)
    assert [box["category_id"] for box in found] == expected["labels"][kept].tolist()
    names = {entry["id"]: entry["name"] for entry in CATEGORIES}
    assert all(box["category"] == names.get(box["category_id"], UNNAMED) for box in found)


def test_the_checkpoint_is_evaluated_and_exported(
    checkpoint: Path, photo: Path, tmp_path: Path, run_here: RunHere
) -> None:
    annotations = tmp_path / "annotations.json"
    image = {"id": 1, "file_name": photo.name, "width": SIZE, "height": SIZE}
    box = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 30, 40]}
    content = {"images": [image], "annotations": [box], "categories": CATEGORIES}
    annotations.write_text(json.dumps(content))
    options = ("--annotations", annotations, "--images", tmp_path)
    done = run_here(main, "evaluate", "--checkpoint", checkpoint, *options)
    assert (done.returncode, done.stderr) == (0, "") and "1 images" in done.stdout
    alone = run_here(main, "evaluate", "--checkpoint", checkpoint)
    assert alone.returncode == 2 and alone.stderr.count("\n") == 1
    assert "--annotations" in alone.stderr
    out = tmp_path / "detector.pt2"
    words = ("--checkpoint", checkpoint, "--out", out, "--image", photo)
    done = run_here(main, "export", *words, "--score", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(out.with_name("detector.pt2.json").read_text())["category_ids"] == [*range(5)]


def test_nothing_but_an_earlier_conversion_is_replaced(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    given = tmp_path / "given.pth"
    torch.save({"model": {}}, given)
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "mine.txt").write_text("mine")
    options = ("--detector", given, "--classes", tmp_path / "no.json", "--trust")
    for out, more in ((checkpoint, ()), (photos, ()), (photos, ("--overwrite",))):
        done = run_here(main, "convert", *options, "--out", out, *more)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and str(out) in done.stderr
    assert (photos / "mine.txt").read_text() == "mine"
    require_free_folder(checkpoint, overwrite=True)
    assert read_checkpoint(checkpoint).model.num_classes == OUTPUTS


@pytest.mark.parametrize(
    "spelling",
    [lambda key: key, lambda key: f"module.{key}", lambda key: f"module.{old_spelling(key)}"],
    ids=["today's", "DataParallel", "MLPerf's"],
)
@pytest.mark.parametrize("wrap", [dict, as_scripts_save], ids=["bare", "scripts"])
def test_every_way_of_saving_gives_the_same_tensors(
    spelling: Callable[[str], str],
    wrap: Callable[[State], dict[str, Any]],
    theirs: TorchvisionRetinaNet,
) -> None:
    state = theirs.state_dict()
    content = content_of(wrap({spelling(key): value for key, value in state.items()}))
    weights = unpickle_weights(content, Path("a.pth"))
    found = detector_tensors(weights.tensors, source="a.pth")
    expected = {key for key in state if not key.endswith("num_batches_tracked")}
    assert found.keys() == expected
    assert all(torch.equal(found[key], state[key]) for key in expected)


def refused(state: State) -> str:
    with pytest.raises(InputError) as caught:
        detector_tensors(state, source="a.pth")
    message = str(caught.value)
    assert "\n" not in message and message.startswith("a.pth: ")
    return message


def test_other_networks_are_refused_by_what_differs(theirs: TorchvisionRetinaNet) -> None:
    state = theirs.state_dict()
    other = retinanet_resnet50_fpn(weights=None, weights_backbone=None).state_dict()
    assert "backbone.body.layer1.0.conv1.weight has shape [64, 64, 1, 1]" in refused(dict(other))
    assert "holds no RetinaNet" in refused(dict(resnext50_32x4d(weights=None).state_dict()))
    key = "backbone.fpn.extra_blocks.p6.weight"
    assert f"{key} has shape" in refused({**state, key: torch.zeros(256, 2048, 3, 3)})
    assert f"{key} is missing" in refused({k: v for k, v in state.items() if k != key})
    assert "extra is not known" in refused({**state, "extra": torch.zeros(1)})
    assert f"{key} holds" in refused({**state, key: torch.full((256, 256, 3, 3), torch.nan)})


def test_code_in_a_file_is_refused_in_one_clean_line(tmp_path: Path, run_here: RunHere) -> None:
    given = tmp_path / "given.pth"
    for malice in ({"model": Malice()}, {"args": argparse.Namespace(a=Malice())}):
        torch.save(malice, given)
        for words in (
            ("--detector", given, "--classes", given, "--out", tmp_path / "made"),
            (given, "--out", tmp_path / "made.safetensors"),
        ):
            done = run_here(main, "convert", *words, "--trust")
            assert done.returncode == 2 and done.stderr.count("\n") == 1
            assert "mkdir" in done.stderr and done.stderr.strip().isprintable()
            assert "�" not in done.stderr and "[1m" not in done.stderr
    assert not Path("made-by-a-pickle").exists()
    assert sorted(tmp_path.iterdir()) == [given]


@pytest.mark.parametrize(
    ("content", "outputs", "expected"),
    [
        ('{"categories": [{"id": 1, "name": "a"}]}', 3, ([0, 1, 2], [UNNAMED, "a", UNNAMED])),
        ('{"categories": [{"id": 7, "name": "a"}, {"id": 2, "name": "b"}]}', 2, ([7, 2], "ab")),
        ('{"categories": [{"id": 1, "name": "a"}, {"id": 0, "name": "b"}]}', 2, ([0, 1], "ba")),
        ('["a", "b"]', 2, ([0, 1], "ab")),
        ("a\n\nb c\n", 2, ([0, 1], ["a", "b c"])),
    ],
    ids=["COCO's gaps", "other ids", "out of order", "JSON list", "lines"],
)
def test_classes_go_to_outputs(
    content: str, outputs: int, expected: tuple[list[int], Any], tmp_path: Path
) -> None:
    file = tmp_path / "classes"
    file.write_text(content)
    found = read_class_map(file, outputs=outputs)
    assert (list(found.category_ids), list(found.names)) == (expected[0], list(expected[1]))


@pytest.mark.parametrize(
    "content",
    [
        "a\nb\n",
        '["a", "b", "c", "d"]',
        "",
        "{}",
        "[1]",
        '{"categories": [{"id": 3, "name": "a"}]}',
        '{"categories": [{"id": 0, "name": "a"}, {"id": 0, "name": "b"}]}',
        '{"categories": [{"id": "0", "name": "a"}]}',
        "[" * 100_000,
        None,
    ],
)
def test_classes_that_do_not_fit_are_one_line(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "classes"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_text(content)
    with pytest.raises(InputError) as caught:
        read_class_map(file, outputs=3)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("a.pth", "--detector", "b.pth", "--classes", "c"),
        ("--detector", "b.pth"),
        ("a.pth", "--classes", "c"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    words: tuple[str, ...], run_here: RunHere
) -> None:
    done = run_here(main, "convert", *words, "--out", "made")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""
