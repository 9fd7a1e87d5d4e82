"""The examples of the tutorial and of ProfileDNN's worked example (docs/examples) work."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import data.__main__
import profiling.__main__
import retinanet.__main__
import train
from retinanet.config_file import load_config
from retinanet.engine import folded_forward
from retinanet.model.retinanet import RetinaNet
from tests.support.commands import RunHere, run_program
from tests.support.random_detectors import write_detector

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "docs" / "examples"


def test_page_shows_the_example_verbatim() -> None:
    text = (REPOSITORY / "docs" / "worked-example.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert (EXAMPLES / "float32-logits.patch").read_text(encoding="utf-8") in blocks


@pytest.mark.parametrize("example", ["my-photos.yaml", "photos/photos.yaml", "profiled.yaml"])
def test_an_example_is_a_configuration(example: str) -> None:
    assert load_config(str(EXAMPLES / example)).run.name == Path(example).stem


@pytest.mark.exhaustive
def test_tutorial_ends_with_boxes_in_a_new_photo(tmp_path: Path, run_here: RunHere) -> None:
    photos, new = tmp_path / "my-photos", tmp_path / "new-photos"
    for out, count in ((photos, "12"), (new, "1")):
        done = run_here(data.__main__.main, "scenes", "--out", out, "--images", count)
        assert done.returncode == 0, done.stderr
    whole = photos / "annotations" / "instances_default.json"
    assert run_here(data.__main__.main, "split", whole, "--out", photos).returncode == 0
    settings = [
        f"data.{split}_{what}={photos / name}"
        for split in ("train", "validation")
        for what, name in (("annotations", f"{split}.json"), ("images", "images"))
    ]
    small = ("data.image_size=64", "training.batch_size=2", "training.max_steps=1")
    quick = ("evaluation.pictures=0", "engine.precision=float32", "launch.pin=false")
    root = f"run.root={tmp_path / 'runs'}"
    weights = f"model.weights={write_detector(tmp_path / 'other')}"
    config = ("--config", EXAMPLES / "my-photos.yaml", *settings, *small, *quick, root, weights)
    verified = run_here(data.__main__.main, "verify", *config)
    assert verified.returncode == 0 and "nothing stops training" in verified.stdout
    trained = run_here(train.main, *config)
    assert trained.returncode == 0, trained.stderr
    predicted = run_here(
        retinanet.__main__.main,
        *("predict", "--checkpoint", tmp_path / "runs" / "my-photos"),
        *("--out", tmp_path / "found", new / "images" / "photo-00000.jpg"),
    )
    assert predicted.returncode == 0, predicted.stderr
    assert (tmp_path / "found" / "photo-00000.boxes.png").stat().st_size > 0


ONE_TOWER = """
import importlib.util, sys
import torch
from retinanet.model.retinanet import RetinaNet

spec = importlib.util.spec_from_file_location("network", sys.argv[1])
network = importlib.util.module_from_spec(spec)
spec.loader.exec_module(network)
model = RetinaNet(num_classes=4, norm="batch", trainable_layers=5)
forward = network.FoldedForward(model, precision="bf16", convolutions="onednn")
level = torch.randn(2, 256, 32, 32).bfloat16().contiguous(memory_format=torch.channels_last)
head = model.head.classification_head
[maps] = forward._tower([level], head.conv, head.cls_logits)
maps.float().sum().backward()
"""
"""Run by itself, since oneDNN writes its log from the first call on, or not at all."""


def patched_file(folder: Path) -> Path:
    """Return `retinanet/engine/folded_forward.py` with the patch of the worked example."""
    place = Path("retinanet") / "engine" / "folded_forward.py"
    (folder / place).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / place, folder / place)
    patch = EXAMPLES / "float32-logits.patch"
    subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)
    return folder / place


def patched_network(folder: Path) -> ModuleType:
    """Return the patched file as a module."""
    spec = importlib.util.spec_from_file_location("patched_network", patched_file(folder))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.exhaustive
def test_compare_reports_the_patched_layer(tmp_path: Path, run_here: RunHere) -> None:
    ours = REPOSITORY / "retinanet" / "engine" / "folded_forward.py"
    logs = {}
    for name, file in (("before", ours), ("after", patched_file(tmp_path))):
        command = (sys.executable, "-c", ONE_TOWER, file)
        done = run_program(*command, check=True, ONEDNN_VERBOSE="1", OMP_NUM_THREADS="1")
        logs[name] = tmp_path / f"{name}.log"
        logs[name].write_text(done.stdout)
    done_here = run_here(profiling.__main__.main, "compare", logs["after"], logs["before"])
    assert done_here.returncode == 0, done_here.stderr
    only_one = done_here.stdout.split("calls that only one side makes")[1]
    assert "ic256oc36_ih32oh32kh3" in only_one and "src:f32 wei:f32" in only_one
    assert "ic256oc256_ih32oh32kh3" not in only_one.split("calls that both sides make")[0]


@pytest.mark.slow
def test_patch_of_the_worked_example_computes_the_last_layer_in_float32(
    tmp_path: Path,
) -> None:
    model = RetinaNet(num_classes=3, norm="batch", trainable_layers=5)
    head = model.head.classification_head
    levels = [torch.randn(1, 256, 2, 2, dtype=torch.bfloat16)]
    logits = {}
    for name, module in (("ours", folded_forward), ("patched", patched_network(tmp_path))):
        forward = module.FoldedForward(model, precision="bf16", convolutions="onednn")
        [logits[name]] = forward._tower(levels, head.conv, head.cls_logits)
    assert logits["ours"].dtype == torch.bfloat16 and logits["patched"].dtype == torch.float32
    torch.testing.assert_close(logits["ours"].float(), logits["patched"], rtol=0.02, atol=0.02)
