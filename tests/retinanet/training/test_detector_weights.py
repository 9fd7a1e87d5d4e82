"""`model.weights`: a detector to start from, whose classes are matched by name."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnext50_32x4d

from data.annotations import UNNAMED
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.config_sections import ModelConfig
from retinanet.model.retinanet import RetinaNet
from retinanet.preflight.run import check_weights
from retinanet.training.build import build_model, read_backbone_weights
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.detector_weights import (
    DetectorStart,
    SourceDetector,
    load_detector,
    match_classes,
    read_detector,
    start_from_detector,
)
from tests.launch.ranks import TrainHere
from tests.support.commands import error_message
from tests.support.random_detectors import NAMES, random_detector, write_detector
from tests.support.torchvision_models import old_spelling
from tests.support.training_runs import ONE_STEP

N = UNNAMED


@pytest.mark.parametrize(
    ("names", "detector", "outputs"),
    [
        (["a", "b"], ["a", "b"], [0, 1]),
        (["c", "a", "b"], ["a", "b", "c"], [2, 0, 1]),
        (["a", "x"], ["b", "a"], [1, None]),
        (["x"], ["a"], [None]),
        ([N, "a", N, "b"], ["b", N, "a"], [None, 2, None, 0]),
        (["traffic_light", "CAR"], ["Car", "Traffic light"], [1, 0]),
        (["car", "Car"], ["Car", "car"], [1, 0]),
        (["CAR"], ["Car", "car"], [0]),
        (["a", "a"], ["a", "a", "b"], [0, 0]),
    ],
    ids=[
        "equal", "permuted", "some", "none", "unnamed", "spelling", "exact first", "first of two",
        "repeated",
    ],
)  # fmt: skip
def test_classes_are_matched_by_name(
    names: Sequence[str], detector: Sequence[str], outputs: Sequence[int | None]
) -> None:
    match = match_classes(names, detector)
    assert list(match.outputs) == outputs
    pairs = list(zip(names, outputs, strict=True))
    assert match.new == tuple(name for name, output in pairs if output is None and name != N)
    assert match.kept == tuple((name, detector[i]) for name, i in pairs if i is not None)
    assert set(match.dropped) == set(detector) - {spelling for _, spelling in match.kept} - {N}


def source_of(model: RetinaNet, names: Sequence[str] = NAMES) -> SourceDetector:
    return SourceDetector(
        file=Path("a"), names=tuple(names), tensors=model.state_dict(), sha256="0"
    )


def started(model: RetinaNet, *, names: Sequence[str], norm: str = "frozen") -> RetinaNet:
    """Return a model with classes of these names that starts from a detector of `NAMES`."""
    torch.manual_seed(5)
    settings = ModelConfig(norm=norm, trainable_layers=0)  # type: ignore[arg-type]
    started_model = build_model(settings, num_classes=len(names), weights=None)
    load_detector(started_model, source_of(model), match_classes(names, NAMES))
    return started_model


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "new_norm"), [("frozen", "batch"), ("batch", "frozen")])
@torch.no_grad()
def test_permuted_classes_have_equal_logits(norm: str, new_norm: str) -> None:
    model = random_detector(norm=norm)
    names = ["three", "new", "one", "two"]
    other = started(model, names=names, norm=new_norm).eval()
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    # Both in one memory format, in which equal weights give equal bits.
    before, after = model.to(memory_format=torch.channels_last)(images), other(images)
    for old, new in zip(before.cls_logits, after.cls_logits, strict=True):
        for name in NAMES:
            # The number of channels changes the order of sums, and so the last bits.
            expected = old[..., NAMES.index(name)]
            torch.testing.assert_close(new[..., names.index(name)], expected, rtol=0, atol=1e-5)
    for old, new in zip(before.bbox_regression, after.bbox_regression, strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_new_classes_start_as_from_scratch() -> None:
    names = ["new", "two", "other"]
    torch.manual_seed(5)
    scratch = build_model(
        ModelConfig(norm="batch", trainable_layers=5), num_classes=3, weights=None
    )
    head = started(random_detector(), names=names).head.classification_head.cls_logits
    fresh, source = scratch.head.classification_head.cls_logits, random_detector()
    old = source.head.classification_head.cls_logits
    assert head.bias is not None and fresh.bias is not None and old.bias is not None
    for rows, fresh_rows, old_rows in (
        (head.weight, fresh.weight, old.weight),
        (head.bias, fresh.bias, old.bias),
    ):
        by_class, fresh_by_class, old_by_class = (
            values.reshape(9, 3, -1) for values in (rows, fresh_rows, old_rows)
        )
        assert torch.equal(by_class[:, [0, 2]], fresh_by_class[:, [0, 2]])
        assert torch.equal(by_class[:, 1], old_by_class[:, 1])
        assert not torch.equal(by_class[:, 1], fresh_by_class[:, 1])


@pytest.mark.slow
def test_detector_is_found_in_run_checkpoint_and_file(tmp_path: Path) -> None:
    checkpoint = write_detector(tmp_path / "run")
    best, last = (checkpoint.with_name(name) for name in ("best", "last"))
    last.symlink_to(checkpoint.name)
    weights = checkpoint / "model.safetensors"
    for path in (tmp_path / "run", checkpoint, weights):
        detector = read_detector(str(path))
        assert (detector.names, detector.step, detector.map) == (NAMES, 7, 0.25)
    assert read_detector(str(tmp_path / "run")).file == last
    best.symlink_to(checkpoint.name)
    assert read_detector(str(tmp_path / "run")).file == best
    tensors = read_checkpoint(checkpoint).tensors("model.safetensors")
    assert detector.tensors.keys() == tensors.keys()
    file = tmp_path / "file.safetensors"
    older = {f"module.{old_spelling(name)}": tensor for name, tensor in tensors.items()}
    save_file(older, file, metadata={"classes": json.dumps(NAMES)})
    alone = read_detector(str(file))
    assert (alone.names, alone.step, alone.file) == (NAMES, None, file)
    assert all(torch.equal(alone.tensors[name], tensor) for name, tensor in tensors.items())


@pytest.mark.slow
def test_wrong_detectors_are_refused(tmp_path: Path) -> None:
    def refused(**files: dict[str, torch.Tensor]) -> str:
        [(name, tensors)] = files.items()
        file = tmp_path / f"{name}.safetensors"
        save_file({key: value.contiguous() for key, value in tensors.items()}, file)
        message = error_message(read_detector, str(file))
        assert message.startswith(f"model.weights: {file}: ")
        return message

    state = random_detector().state_dict()
    advice = refused(bare=state)
    assert "no class names" in advice and "convert --detector" in advice and "--classes" in advice
    key = "backbone.body.layer1.0.conv1.weight"
    wrong = refused(other={**state, key: torch.zeros(64, 64, 1, 1)})
    assert f"RetinaNet on resnext50_32x4d: {key} has shape [64, 64, 1, 1]" in wrong
    backbone = dict(resnext50_32x4d(weights=None).state_dict())
    assert "model.pretrained_backbone" in refused(backbone=backbone)
    assert "does not exist" in error_message(read_detector, str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert "contains no checkpoint" in error_message(read_detector, str(tmp_path / "empty"))
    (tmp_path / "text.safetensors").write_text("hello")
    message = error_message(read_detector, str(tmp_path / "text.safetensors"))
    assert "cannot be read" in message
    for names in ('["a"]', "[1, 2, 3]", "{", "3"):
        save_file(state, tmp_path / "named.safetensors", metadata={"classes": names})
        message = error_message(read_detector, str(tmp_path / "named.safetensors"))
        assert "list of 3 names" in message


def test_tensors_are_counted_before_they_are_made(tmp_path: Path) -> None:
    file = tmp_path / "many.safetensors"
    save_file({str(number): torch.zeros(1, dtype=torch.uint8) for number in range(10_001)}, file)
    named = f"{file}: has 10,001 tensors, more than the 10,000 that are read"
    assert error_message(read_detector, str(file)).startswith(f"model.weights: {named}")
    assert named in error_message(read_backbone_weights, str(file), backbone="resnet50")


def test_outputs_are_limited_before_a_model_is_built(tmp_path: Path) -> None:
    file = tmp_path / "wide.safetensors"
    # No value, so that no file is too small for the shape.
    tensor = {"dtype": "F32", "shape": [2**62, 0, 3, 3], "data_offsets": [0, 0]}
    header = json.dumps({"head.classification_head.cls_logits.weight": tensor}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    message = error_message(read_detector, str(file))
    assert message.startswith(f"model.weights: {file}: ") and "more than 99,999 classes" in message


def test_table_of_many_classes_is_short() -> None:
    detector = [f"class {number}" for number in range(264)]
    source = SourceDetector(
        file=Path("runs/a"), names=tuple(detector), tensors={}, sha256="0", step=9, map=0.3755
    )
    start = DetectorStart(
        detector=source,
        match=match_classes(["Class 7", *detector[100:200], "x\x1b[31m"], detector),
    )
    rows = start.rows()
    assert list(rows) == ["weights", "classes kept", "classes new", "classes dropped"]
    assert rows["weights"] == "runs/a, step 9, mAP 0.376"
    assert rows["classes kept"].startswith("101 of 102: Class 7 (as class 7), class 100, ")
    assert rows["classes kept"].endswith(" and 93 more")
    assert rows["classes new"].startswith("1 of 102, from scratch: x") and "\x1b" not in str(rows)
    assert rows["classes dropped"].startswith("163 of the detector's 264: class 0, class 1, ")
    assert max(map(len, rows.values())) < 150
    content = start.to_dict()
    assert len(content["kept"]) == 101 and len(content["dropped"]) == 163 and start.notes() == []


@pytest.mark.slow
def test_check_loads_the_detector_and_counts_classes(detector: Path, tmp_path: Path) -> None:
    def config(*changes: str) -> Config:
        return load_config("demo.yaml", [f"model.weights={detector}", *changes])

    finding = check_weights(config())
    assert finding.level == "warning" and "0 kept, 6 new, 3 dropped" in finding.detail
    annotations = tmp_path / "labels.json"
    categories = [{"id": 1, "name": "two"}, {"id": 2, "name": "four"}]
    image = {"id": 1, "file_name": "a.png", "width": 64, "height": 64}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 40]}
    content = {"images": [image], "annotations": [box], "categories": categories}
    annotations.write_text(json.dumps(content))
    own = (
        "data.scenes=null",
        f"data.train_annotations={annotations}",
        f"data.train_images={tmp_path}",
    )
    finding = check_weights(config(*own))
    assert finding.level == "ok" and "1 kept, 1 new, 2 dropped" in finding.detail
    annotations.unlink()
    finding = check_weights(config(*own))
    assert finding.level == "ok" and "when the run reads the data" in finding.detail
    finding = check_weights(load_config("demo.yaml", [f"model.weights={tmp_path}"]))
    assert finding.level == "failure" and finding.detail.startswith("model.weights: ")


@pytest.mark.slow
def test_run_starts_from_a_detector_and_resumes_without_it(
    tmp_path: Path, train_here: TrainHere
) -> None:
    source = write_detector(tmp_path / "source")
    settings = (*ONE_STEP, f"run.root={tmp_path}", f"model.weights={tmp_path / 'source'}")
    for name in ("last", "best"):
        source.with_name(name).symlink_to(source.name)
    done = train_here("--config", "demo.yaml", *settings)
    assert (done.code, done.errors) == (0, ""), done.errors
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    best = source.with_name("best")
    assert f"weights {best}, step 7, mAP 0.250" in lines
    assert "classes kept 0 of 6: none" in lines
    assert "classes dropped 3 of the detector's 3: one, two, three" in lines
    assert any(line.startswith("note: model.weights: ") for line in lines)
    run = tmp_path / "tuned"
    record = json.loads((run / "weights.json").read_text())
    assert record["source"] == str(best) and record["dropped"] == list(NAMES)
    checkpoint = read_checkpoint(run)
    # Without trainable layers, the body and its norms are the detector's.
    trained, given = (
        read_checkpoint(folder).tensors("model.safetensors") for folder in (run, source)
    )
    body = [name for name in given if name.startswith("backbone.body.")]
    assert len(body) == 265 and all(torch.equal(trained[name], given[name]) for name in body)
    card = (checkpoint.folder / "MODEL_CARD.md").read_text()
    assert "another detector" in card and "0 of 6" in card
    shutil.rmtree(tmp_path / "source")
    resumed = train_here("--config", "demo.yaml", *settings, "training.max_steps=2", "--resume")
    assert (resumed.code, resumed.errors) == (0, ""), resumed.errors
    assert "classes kept" not in resumed.output
    assert json.loads((run / "weights.json").read_text()) == record
    card = (read_checkpoint(run / "checkpoints" / "last").folder / "MODEL_CARD.md").read_text()
    assert "another detector" in card


def test_no_detector_changes_nothing() -> None:
    model = torch.nn.Identity()
    assert start_from_detector(model, None, names=["a"]) is None  # type: ignore[arg-type]
