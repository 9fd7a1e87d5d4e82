"""Runs with an average of the weights, AdamW, milestones, and a learning rate of the body."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from retinanet.evaluation.detect import detect_split
from retinanet.model.retinanet import RetinaNet
from retinanet.training import components
from tests.launch.ranks import TrainHere, run_ranks
from tests.support.random_detectors import write_detector
from tests.support.training_runs import assert_same_end, cut_back, read_records

pytestmark = pytest.mark.slow

STEPS = 3
PARTS = ("model.safetensors", "raw.safetensors", "optimizer.safetensors")
SETTINGS = (
    *("data.scenes.train=4", "data.scenes.validation=2", "data.image_size=64"),
    *("training.batch_size=2", "training.warmup_epochs=0", "training.target_map=null"),
    *("training.optimizer=adamw", "training.weight_decay=0.01", "training.learning_rate=1e-3"),
    *("training.schedule=step", "training.milestones=[0.5, 1]", "training.milestone_factor=0.5"),
    *("training.ema=0.9", "training.body_learning_rate_factor=0.25"),
    *(f"training.max_steps={STEPS}", "evaluation.pictures=0", "engine.precision=float32"),
)
"""Two steps an epoch; evaluations after steps 2 and 3."""
BETWEEN = "checkpoint.every=1 steps"
"""A checkpoint within the first epoch, from which other runs continue."""


def settings_in(root: Path, name: str, *changes: str) -> list[str]:
    return [*SETTINGS, *changes, f"run.root={root}", f"run.name={name}"]


@pytest.fixture(scope="module")
def whole(root: Path, train_here: TrainHere) -> Path:
    """Return an uninterrupted run."""
    outcome = train_here(*settings_in(root, "whole", BETWEEN, "launch.threads=1"))
    assert (outcome.code, outcome.errors) == (0, "")
    return root / "whole"


def test_resumed_run_continues_bit_for_bit_and_evaluates_the_averages(
    whole: Path, root: Path, train_here: TrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Tensor]] = []

    def detect(model: RetinaNet, *inputs: Any, **settings: Any) -> Any:
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return detect_split(model, *inputs, **settings)

    monkeypatch.setattr(components, "detect_split", detect)
    cut_back(whole, root / "pieces", step=1)
    outcome = train_here(*settings_in(root, "pieces", "launch.threads=1"), "--resume")
    assert outcome.code == 0, outcome.errors
    assert "resumed after step 1" in " ".join(outcome.output.split())
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
    rates = [1e-3, 5e-4, 2.5e-4]
    assert [record["learning_rate"] for record in records] == pytest.approx(rates)
    body = [record["body_learning_rate"] for record in records]
    assert body == pytest.approx([rate / 4 for rate in rates])


def test_average_changes_no_training_and_may_end_and_begin_in_a_resumed_run(
    whole: Path, root: Path, train_here: TrainHere
) -> None:
    cut_back(whole, root / "changed", step=1)
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
    changes = ("training.batch_size=1", "distributed.timeout_s=60")
    job = run_ranks(2, "train.py", *settings_in(root, "ranks", *changes, BETWEEN))
    assert (job.code, job.errors) == (0, "") and "weights differed" not in job.output
    parts = load_file(root / "ranks" / "checkpoints" / "last" / "ranks.safetensors")
    name = "backbone.body.bn1.running_mean"
    assert {f"{rank}/{prefix}{name}" for rank in (0, 1) for prefix in ("", "ema/")} <= parts.keys()
    cut_back(root / "ranks", root / "ranks-resumed", step=1)
    job = run_ranks(2, "train.py", *settings_in(root, "ranks-resumed", *changes), "--resume")
    assert (job.code, job.errors) == (0, "")
    assert "resumed after step 1" in " ".join(job.output.split())
    parts_beside = ("raw.safetensors", "ranks.safetensors")
    assert_same_end(root / "ranks-resumed", root / "ranks", *parts_beside, step=STEPS)


@pytest.mark.whole_machine
def test_two_ranks_start_from_one_detector_and_average_what_one_rank_does(
    root: Path, train_here: TrainHere
) -> None:
    """From a detector with constant norms, whose statistics no rank has of its own."""
    source = write_detector(root / "source")
    changes = [
        *(f"model.weights={source}", "model.norm=frozen", "model.trainable_layers=3"),
        "training.optimizer=sgd",
    ]
    one = train_here(*settings_in(root, "one", *changes, "launch.threads=1"))
    assert one.code == 0, one.errors
    arguments = settings_in(root, "two", *changes, "training.batch_size=1")
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
