"""Runs with an average of the weights, AdamW, milestones, and a learning rate of the body."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.models import resnext50_32x4d

from retinanet.evaluation.detect import detect_split
from retinanet.model.retinanet import RetinaNet
from retinanet.training import trainer
from retinanet.training.checkpoint import read_checkpoint
from tests.launch.ranks import TrainHere, ended, run_ranks, start_ranks
from tests.support.training_runs import read_records, start_training, wait_for_steps

pytestmark = pytest.mark.slow

STEPS = 6
PARTS = ("model.safetensors", "raw.safetensors", "optimizer.safetensors")
SETTINGS = (
    *("data.scenes.train=8", "data.scenes.validation=3", "data.image_size=64"),
    *("training.batch_size=2", "training.warmup_epochs=0", "training.target_map=null"),
    *("training.optimizer=adamw", "training.weight_decay=0.01", "training.learning_rate=1e-3"),
    *("training.schedule=step", "training.milestones=[0.5, 1]", "training.milestone_factor=0.5"),
    *("training.ema=0.9", "training.body_learning_rate_factor=0.25"),
    *(f"training.max_steps={STEPS}", "evaluation.pictures=0", "engine.precision=float32"),
)
"""Four steps an epoch; evaluations after steps 4 and 6."""


def settings_in(root: Path, name: str, *changes: str) -> list[str]:
    return [*SETTINGS, *changes, f"run.root={root}", f"run.name={name}"]


def assert_same_end(run: Path, other: Path, *parts: str) -> None:
    """Assert equal checkpoints at the end, and equal mAPs."""
    ours, theirs = (folder / "checkpoints" / "last" for folder in (run, other))
    for part in (*PARTS, *parts):
        assert (ours / part).read_bytes() == (theirs / part).read_bytes(), part
    first, second = read_checkpoint(ours), read_checkpoint(theirs)
    assert first.position == second.position and first.position.step == STEPS
    assert first.state.random_states == second.state.random_states
    maps = [
        [(record["step"], record["map"]) for record in read_records(folder, kind="evaluation")]
        for folder in (run, other)
    ]
    assert maps[0] == maps[1]


@pytest.fixture(scope="module")
def whole(root: Path) -> Path:
    """Return an uninterrupted run."""
    outcome = ended(start_training(*settings_in(root, "whole")))
    assert (outcome.code, outcome.errors) == (0, "")
    return root / "whole"


def test_interrupted_run_continues_bit_for_bit(whole: Path, root: Path) -> None:
    process = start_training(*settings_in(root, "pieces"))
    wait_for_steps(root / "pieces", process, count=2)
    process.send_signal(signal.SIGTERM)
    assert ended(process).code == 75
    assert len(read_records(root / "pieces", kind="step")) < STEPS
    outcome = ended(start_training(*settings_in(root, "pieces"), "--resume"))
    assert (outcome.code, outcome.errors) == (0, "")
    assert_same_end(root / "pieces", whole)


def test_averages_follow_the_weights(whole: Path) -> None:
    averages, weights = (load_file(whole / "checkpoints" / "last" / part) for part in PARTS[:2])
    assert weights.keys() < averages.keys()
    for name, value in weights.items():
        distance = float((averages[name] - value).abs().max())
        assert distance <= float(value.abs().max()), name
    bias = "head.classification_head.cls_logits.bias"
    assert not torch.equal(averages[bias], weights[bias])


def test_evaluation_sees_the_averages_that_the_checkpoint_has(
    root: Path, train_here: TrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Tensor]] = []

    def detect(model: RetinaNet, *inputs: Any, **settings: Any) -> Any:
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return detect_split(model, *inputs, **settings)

    monkeypatch.setattr(trainer, "detect_split", detect)
    outcome = train_here(*settings_in(root, "seen", "training.max_steps=2"))
    assert outcome.code == 0, outcome.errors
    last = root / "seen" / "checkpoints" / "last"
    averages, weights = (load_file(last / part) for part in PARTS[:2])
    [state] = seen
    assert state.keys() == averages.keys()
    assert all(torch.equal(state[name], value) for name, value in averages.items())
    assert not all(torch.equal(state[name], value) for name, value in weights.items())


def test_rates_of_every_step_are_recorded(whole: Path) -> None:
    records = read_records(whole, kind="step")
    rates = [1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4]
    assert [record["learning_rate"] for record in records] == pytest.approx(rates)
    body = [record["body_learning_rate"] for record in records]
    assert body == pytest.approx([rate / 4 for rate in rates])


def test_average_changes_no_training_and_may_begin_and_end_in_a_resumed_run(
    whole: Path, root: Path
) -> None:
    for ema, steps in (("null", 2), ("0.9", 4), ("null", STEPS)):
        changes = (f"training.ema={ema}", f"training.max_steps={steps}")
        resume = ("--resume",) if (root / "changed").exists() else ()
        outcome = ended(start_training(*settings_in(root, "changed"), *changes, *resume))
        assert (outcome.code, outcome.errors) == (0, "")
        last = root / "changed" / "checkpoints" / "last"
        assert (last / "raw.safetensors").exists() == (ema != "null")
    assert "training.ema was 0.9, is now None" in " ".join(outcome.output.split())
    averaged = whole / "checkpoints" / "last"
    assert (last / PARTS[2]).read_bytes() == (averaged / PARTS[2]).read_bytes()
    weights, raw = load_file(last / "model.safetensors"), load_file(averaged / "raw.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in raw.items())


@pytest.mark.whole_machine
def test_two_ranks_resume_bit_for_bit(root: Path) -> None:
    changes = ("training.batch_size=1", "distributed.timeout_s=60")
    job = run_ranks(2, "train.py", *settings_in(root, "ranks", *changes))
    assert (job.code, job.errors) == (0, "") and "weights differed" not in job.output
    parts = load_file(root / "ranks" / "checkpoints" / "last" / "ranks.safetensors")
    name = "backbone.body.bn1.running_mean"
    assert {f"{rank}/{prefix}{name}" for rank in (0, 1) for prefix in ("", "ema/")} <= parts.keys()
    process = start_ranks(2, "train.py", *settings_in(root, "ranks-resumed", *changes))
    wait_for_steps(root / "ranks-resumed", process, count=2)
    process.send_signal(signal.SIGTERM)
    assert ended(process).code != 0
    assert len(read_records(root / "ranks-resumed", kind="step")) < STEPS
    job = run_ranks(2, "train.py", *settings_in(root, "ranks-resumed", *changes), "--resume")
    assert (job.code, job.errors) == (0, "")
    assert_same_end(root / "ranks-resumed", root / "ranks", "ranks.safetensors")


@pytest.mark.whole_machine
def test_two_ranks_average_what_one_rank_does(root: Path) -> None:
    """With constant norms, whose statistics no rank has of its own."""
    torch.manual_seed(0)
    backbone = dict(resnext50_32x4d(weights=None).state_dict())
    for name, value in backbone.items():
        if name.endswith("bn3.weight"):
            value.fill_(0.1)  # keeps random blocks from doubling their inputs
    save_file(backbone, root / "backbone.safetensors")
    changes = [
        *(f"model.pretrained_backbone={root / 'backbone.safetensors'}", "model.norm=frozen"),
        *("model.trainable_layers=3", "training.optimizer=sgd", "training.max_steps=3"),
    ]
    one = ended(start_training(*settings_in(root, "one", *changes)))
    assert (one.code, one.errors) == (0, "")
    arguments = settings_in(root, "two", *changes, "training.batch_size=1")
    two = run_ranks(2, "train.py", *arguments, "distributed.timeout_s=60")
    assert (two.code, two.errors) == (0, "")
    for part in PARTS[:2]:
        first, second = (
            load_file(root / name / "checkpoints/last" / part) for name in ("one", "two")
        )
        assert first.keys() == second.keys()
        for name, value in first.items():
            torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-6)
