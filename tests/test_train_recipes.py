"""Runs with all that a recipe may have: an average of the weights, AdamW, milestones, a learning
rate of the body, repeated images of rare classes, and classes' weights in the loss."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from common.files import read_text
from retinanet.evaluation.detect import detect_split
from retinanet.loss import detection
from retinanet.loss.focal import focal_loss
from retinanet.model.retinanet import RetinaNet
from retinanet.training import components
from retinanet.training.checkpoint import read_checkpoint
from tests.launch.ranks import Ended, TrainHere, run_ranks
from tests.support.random_detectors import write_detector
from tests.support.training_runs import assert_same_end, cut_back, read_records

pytestmark = pytest.mark.slow

STEPS, MIDDLE = 4, 1
PARTS = ("model.safetensors", "raw.safetensors", "optimizer.safetensors")
SETTINGS = (
    *("data.scenes.train=4", "data.scenes.validation=2", "data.image_size=64"),
    *("data.repeat_rare=1.0", "training.class_weights={Bus: 3, House: 0.5}"),
    *("training.batch_size=1", "training.gradient_accumulation=2", "training.target_map=null"),
    *("training.optimizer=adamw", "training.weight_decay=0.01", "training.learning_rate=1e-3"),
    *("training.schedule=step", "training.milestones=[0.5, 1]", "training.milestone_factor=0.5"),
    *("training.ema=0.9", "training.body_learning_rate_factor=0.25", "training.warmup_epochs=0"),
    *(f"training.max_steps={STEPS}", "evaluation.pictures=0", "engine.precision=float32"),
)
"""Three steps an epoch, as seven places of images make it; evaluations after steps 3 and 4."""
BETWEEN = ("checkpoint.every=1 steps", "checkpoint.keep=9")
"""A checkpoint within the first epoch, from which other runs continue."""
ALONE = "training.gradient_accumulation=1"  # for two ranks, whose images make a step
WEIGHTS: list[Tensor] = []  # those that losses were computed with


def settings_in(root: Path, name: str, *changes: str) -> list[str]:
    return [*SETTINGS, *changes, f"run.root={root}", f"run.name={name}"]


@pytest.fixture(scope="module")
def finished(root: Path, train_here: TrainHere) -> Ended:
    """Return the end of an uninterrupted run."""

    def noted(*inputs: Any, class_weights: Tensor, **options: Any) -> Tensor:
        WEIGHTS.append(class_weights)
        return focal_loss(*inputs, class_weights=class_weights, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "focal_loss", noted)
        outcome = train_here(*settings_in(root, "whole", *BETWEEN, "launch.threads=1"))
    assert (outcome.code, outcome.errors) == (0, "")
    return outcome


@pytest.fixture(scope="module")
def whole(finished: Ended, root: Path) -> Path:
    """Return the folder of the uninterrupted run."""
    return root / "whole"


def repeat_factors_of_scenes(run: Path) -> list[float]:
    """Return LVIS' factors of the run's images that have boxes, from their JSON."""
    labels = run / "scenes" / "train" / "labels" / "openimages-mlperf.json"
    classes: dict[int, set[int]] = {}
    for box in json.loads(labels.read_text())["annotations"]:
        classes.setdefault(box["image_id"], set()).add(box["category_id"])
    count = {c: sum(c in kinds for kinds in classes.values()) for c in range(1, 7)}
    return [max((len(classes) / count[c]) ** 0.5 for c in kinds) for kinds in classes.values()]


def test_epochs_are_as_long_as_repeated_images_make_them(whole: Path) -> None:
    places = -(-sum(repeat_factors_of_scenes(whole)) // 1)
    steps_per_epoch = places // 2
    assert MIDDLE < 4 / 2 < steps_per_epoch < STEPS
    epochs = [record["epoch"] for record in read_records(whole, kind="step")]
    assert epochs == pytest.approx(
        [step / steps_per_epoch for step in range(1, STEPS + 1)], abs=1e-4
    )
    position = read_checkpoint(whole / "checkpoints" / "last").position
    assert position.images_per_epoch == places


def test_losses_have_the_weights_and_the_run_says_so(finished: Ended, whole: Path) -> None:
    assert len(WEIGHTS) == 2 * STEPS
    for weights in WEIGHTS:
        assert weights.tolist() == [1, 3, 1, 0.5, 1, 1]
    shown = " ".join(finished.output.split())
    line = "Bus 3, Balloon 1, Christmas tree 1, Mushroom 1, Umbrella 1, House 0.5"
    assert f"class weights {line}" in shown and " of 4 images, up to " in shown
    environment = json.loads(read_text(whole / "environment.json"))
    assert environment["rare_classes"]["class weights"] == line
    card = read_text(whole / "checkpoints" / "last" / "MODEL_CARD.md")
    assert f"| class weights | {line} |" in card and "| repeats | " in card


def test_unknown_class_ends_the_start_in_one_line(root: Path, train_here: TrainHere) -> None:
    arguments = settings_in(root, "unknown", "training.class_weights={Buss: 3}")
    refused = train_here(*arguments)
    assert (refused.code, refused.errors) == (
        2, "error: training.class_weights: no class 'Buss'; did you mean 'Bus'?\n"
    )  # fmt: skip


def test_resumed_run_continues_bit_for_bit_and_evaluates_the_averages(
    whole: Path, root: Path, train_here: TrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Tensor]] = []

    def detect(model: RetinaNet, *inputs: Any, **settings: Any) -> Any:
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return detect_split(model, *inputs, **settings)

    monkeypatch.setattr(components, "detect_split", detect)
    cut_back(whole, root / "pieces", step=MIDDLE)
    position = read_checkpoint(root / "pieces" / "checkpoints" / "last").position
    assert (position.epoch, position.images) == (0, 2 * MIDDLE)
    arguments = [*settings_in(root, "pieces", "launch.threads=1"), "--resume"]
    refused = train_here(*arguments, "data.repeat_rare=0.9")
    assert refused.code == 2 and "data.repeat_rare was 1.0, is now 0.9" in refused.errors
    outcome = train_here(*arguments)
    assert outcome.code == 0, outcome.errors
    assert f"resumed after step {MIDDLE}" in " ".join(outcome.output.split())
    assert_same_end(root / "pieces", whole, "raw.safetensors", step=STEPS)
    averages, weights = (load_file(whole / "checkpoints" / "last" / part) for part in PARTS[:2])
    assert len(seen) == 2 and seen[1].keys() == averages.keys()
    assert all(torch.equal(seen[1][name], value) for name, value in averages.items())
    assert not all(torch.equal(seen[1][name], value) for name, value in weights.items())


def test_averages_follow_the_weights(whole: Path) -> None:
    averages, weights = (load_file(whole / "checkpoints" / "last" / part) for part in PARTS[:2])
    assert weights.keys() < averages.keys()
    for name, value in weights.items():
        distance = float((averages[name] - value).abs().max())
        assert distance <= float(value.abs().max()), name
    bias = "head.classification_head.cls_logits.bias"
    assert not torch.equal(averages[bias], weights[bias])


def test_rates_of_every_step_are_recorded(whole: Path) -> None:
    records = read_records(whole, kind="step")
    rates = [1e-3, 1e-3, 5e-4, 2.5e-4]
    assert [record["learning_rate"] for record in records] == pytest.approx(rates)
    body = [record["body_learning_rate"] for record in records]
    assert body == pytest.approx([rate / 4 for rate in rates])


def test_average_changes_no_training_and_may_end_and_begin_in_a_resumed_run(
    whole: Path, root: Path, train_here: TrainHere
) -> None:
    cut_back(whole, root / "changed", step=MIDDLE)
    last = root / "changed" / "checkpoints" / "last"
    for was, ema, steps in (("0.9", "null", 2), ("None", "0.9", STEPS)):
        changes = (f"training.ema={ema}", f"training.max_steps={steps}", "evaluation.every=9")
        outcome = train_here(
            *settings_in(root, "changed", *changes), "launch.threads=1", "--resume"
        )
        assert outcome.code == 0, outcome.errors
        assert (last / "raw.safetensors").exists() == (ema != "null")
        assert f"training.ema was {was}, is now " in " ".join(outcome.output.split())
    averaged = whole / "checkpoints" / "last"
    for part in PARTS[1:]:
        assert (last / part).read_bytes() == (averaged / part).read_bytes(), part


@pytest.mark.whole_machine
def test_two_ranks_resume_bit_for_bit(root: Path) -> None:
    changes = (ALONE, "distributed.timeout_s=60", "training.max_steps=3")
    job = run_ranks(2, "train.py", *settings_in(root, "ranks", *changes, *BETWEEN))
    assert (job.code, job.errors) == (0, "") and "weights differed" not in job.output
    parts = load_file(root / "ranks" / "checkpoints" / "last" / "ranks.safetensors")
    name = "backbone.body.bn1.running_mean"
    assert {f"{rank}/{prefix}{name}" for rank in (0, 1) for prefix in ("", "ema/")} <= parts.keys()
    cut_back(root / "ranks", root / "ranks-resumed", step=MIDDLE)
    job = run_ranks(2, "train.py", *settings_in(root, "ranks-resumed", *changes), "--resume")
    assert (job.code, job.errors) == (0, "")
    assert f"resumed after step {MIDDLE}" in " ".join(job.output.split())
    parts_beside = ("raw.safetensors", "ranks.safetensors")
    assert_same_end(root / "ranks-resumed", root / "ranks", *parts_beside, step=3)


@pytest.mark.whole_machine
def test_two_ranks_start_from_one_detector_and_average_what_one_rank_does(
    root: Path, train_here: TrainHere
) -> None:
    """From a detector with constant norms, whose statistics no rank has of its own."""
    source = write_detector(root / "source")
    changes = [
        *(f"model.weights={source}", "model.norm=frozen", "model.trainable_layers=3"),
        *(ALONE, "training.optimizer=sgd", "training.max_steps=3"),
    ]
    pairs = ("training.batch_size=2", "launch.threads=1")
    one = train_here(*settings_in(root, "one", *changes, *pairs))
    assert one.code == 0, one.errors
    arguments = settings_in(root, "two", *changes)
    two = run_ranks(2, "train.py", *arguments, "distributed.timeout_s=60")
    assert (two.code, two.errors) == (0, "")
    assert two.output.count("classes dropped") == 1
    for part in PARTS[:2]:
        first, second = (
            load_file(root / name / "checkpoints/last" / part) for name in ("one", "two")
        )
        assert first.keys() == second.keys()
        for name, value in first.items():
            torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-6)
    given, trained = (
        load_file(folder / "model.safetensors")
        for folder in (source, root / "two" / "checkpoints" / "last")
    )
    frozen = [name for name in given if name.startswith("backbone.body.layer1.")]
    assert frozen and all(torch.equal(trained[name], given[name]) for name in frozen)
