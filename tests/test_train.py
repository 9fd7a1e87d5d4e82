"""The real command line on a few synthetic images: whole runs, interruptions, and errors."""

import errno
import json
import math
import os
import re
import shutil
import signal
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from ruamel.yaml import YAML
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from data.dataset import Batch
from data.index import open_annotations
from retinanet import model_card
from retinanet.config_file import load_config
from retinanet.engine.engines import PreparedTraining
from retinanet.mlperf.log import read_events
from retinanet.mlperf.official import check_compliance
from retinanet.training import data, loop
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.loop import batch_losses
from tests.launch.ranks import Ended, TrainHere, ended
from tests.support.training_runs import (
    assert_same_end,
    mark_as_run,
    read_records,
    start_training,
)
from tests.support.without_locks import built_library, without_locks

pytestmark = pytest.mark.slow

STEPS = 5
SETTINGS = [
    "data.scenes.train=4",
    "data.scenes.validation=2",
    "data.image_size=[64, 96]",
    "data.resize=letterbox",
    "data.augmentation=[ssd, strong]",  # every step of an augmentation
    "training.batch_size=2",
    "training.learning_rate=1e-3",
    "training.warmup_epochs=0.5",
    f"training.max_steps={STEPS}",
    "evaluation.every=2",
    "evaluation.pictures=2",
    "engine.precision=float32",
]
"""Two steps an epoch, evaluations after steps 4 and 5."""
WITHOUT_STATE = "training.optimizer=sgd"
"""Its checkpoints have a third of the size."""


class Interrupted(NamedTuple):
    """A run that was stopped by SIGTERM and resumed."""

    run: Path
    stopped: Ended
    stopped_at: int
    """Number of completed steps at that time."""
    resumed: Ended


def settings_in(root: Path, name: str, *changes: str) -> list[str]:
    return [*SETTINGS, f"run.root={root}", f"run.name={name}", *changes]


def snapshot(folder: Path) -> dict[Path, tuple[int, int] | None]:
    """Return all files with size and modification time, and all folders."""
    return {
        path: None if path.is_dir() else (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> Path:
    """Return the folder of an uninterrupted run."""
    outcome = ended(start_training(*settings_in(root, "undisturbed")))
    assert outcome.code == 0, outcome.errors
    assert outcome.errors == ""
    assert f"finished after {STEPS} steps" in outcome.output
    return root / "undisturbed"


@pytest.fixture(scope="module")
def interrupted(root: Path, train_here: TrainHere) -> Interrupted:
    """Return the same run in this process, stopped by SIGTERM in a step and resumed."""
    run, numbers = root / "interrupted", count(1)
    arguments = (*settings_in(root, run.name), "launch.threads=1")

    def losses(*inputs: Any, **forms: Any) -> dict[str, torch.Tensor]:
        if next(numbers) == 3:
            signal.raise_signal(signal.SIGTERM)
        return batch_losses(*inputs, **forms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "batch_losses", losses)
        stopped = train_here(*arguments)
    stopped_at = len(read_records(run, kind="step"))
    return Interrupted(run, stopped, stopped_at, train_here(*arguments, "--resume"))


def test_sigterm_stops_a_run_after_a_checkpoint(
    interrupted: Interrupted,
) -> None:
    stopped, stopped_at = interrupted.stopped, interrupted.stopped_at
    assert stopped.code == 75, stopped.errors
    assert "SIGTERM: checkpoint written" in stopped.output and "--resume" in stopped.output
    assert 2 <= stopped_at < STEPS


def test_resumed_run_ends_with_the_weights_of_an_undisturbed_one(
    undisturbed: Path, interrupted: Interrupted
) -> None:
    run, _, stopped_at, resumed = interrupted
    assert resumed.code == 0, resumed.errors
    assert f"after step {stopped_at}" in resumed.output
    assert_same_end(run, undisturbed, step=STEPS)


def test_resumed_run_records_every_step_and_evaluation_once(
    undisturbed: Path, interrupted: Interrupted
) -> None:
    run = interrupted[0]
    memory = ("page_faults", "resident_mb", "peak_resident_mb")
    for kind, machines in (
        ("step", ("images_per_second", "seconds", "data_seconds", *memory)),
        ("evaluation", ("seconds",)),
    ):
        whole, pieces = (read_records(folder, kind=kind) for folder in (undisturbed, run))
        for record in (*whole, *pieces):
            for name in machines:
                assert record.pop(name) > 0 or name in ("data_seconds", "page_faults")
        assert pieces == whole
    assert [record["step"] for record in read_records(run, kind="step")] == list(
        range(1, STEPS + 1)
    )
    assert [record["step"] for record in read_records(run, kind="evaluation")] == [4, STEPS]


def test_resumed_run_has_the_mlperf_log_of_an_undisturbed_one(
    undisturbed: Path, interrupted: Interrupted
) -> None:
    whole, pieces = (
        [
            (line.key, None if line.key == "tracked_stats" else line.value, line.metadata)
            for line in read_events(run / "mlperf.log")
        ]
        for run in (undisturbed, interrupted[0])
    )
    assert pieces == whole
    keys = [key for key, _, _ in whole]
    assert keys[-1] == "run_stop" and keys.count("run_start") == 1
    epochs = [metadata["epoch_num"] for key, _, metadata in whole if key == "epoch_start"]
    assert epochs == [1, 2, 3]
    maps = [record["map"] for record in read_records(undisturbed, kind="evaluation")]
    assert [value for key, value, _ in whole if key == "eval_accuracy"] == maps
    places = [metadata["epoch_num"] for key, _, metadata in whole if key == "eval_accuracy"]
    assert places == [2, 2.5]
    assert check_compliance(undisturbed / "mlperf.log", rules="5.1.0").passed


def test_saved_configuration_loads_again(undisturbed: Path) -> None:
    overrides = settings_in(undisturbed.parent, "undisturbed", "launch.threads=1")
    config = load_config(str(undisturbed / "config.yaml"))
    assert config == load_config("demo.yaml", overrides)
    environment = json.loads((undisturbed / "environment.json").read_text())
    assert environment["command"] == ["train.py", *overrides]
    assert environment["torch_threads"] == 1


def test_tensorboard_has_the_values_of_the_metrics_file(undisturbed: Path) -> None:
    events = EventAccumulator(str(undisturbed / "tensorboard"))
    events.Reload()
    for tag, kind, name in (
        ("train/loss", "step", "loss"),
        ("train/bbox_regression", "step", "bbox_regression"),
        ("train/learning_rate", "step", "learning_rate"),
        ("evaluation/map_50", "evaluation", "map_50"),
    ):
        expected = [
            (record["step"], record[name]) for record in read_records(undisturbed, kind=kind)
        ]
        shown = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in shown] == [step for step, _ in expected]
        values = [value for _, value in expected]
        assert [value for _, value in shown] == pytest.approx(values, rel=1e-6), tag
    assert [event.step for event in events.Images("validation")] == [4, STEPS]


def test_learning_rate_follows_warmup_and_cosine(undisturbed: Path) -> None:
    rates = [record["learning_rate"] for record in read_records(undisturbed, kind="step")]
    # A warm-up of half an epoch: one step of the two.
    assert rates[0] == pytest.approx(1e-3 * 1e-3)
    assert rates[1] == pytest.approx(1e-3)
    assert rates[1:] == sorted(rates[1:], reverse=True) and rates[-1] < 2e-4


def test_pictures_are_not_blank(undisturbed: Path) -> None:
    pictures = undisturbed / "pictures"
    names = {file.name for file in pictures.iterdir()}
    assert names == {"step-000004.png", f"step-{STEPS:06d}.png", "curves.png"}
    for name in names:
        with Image.open(pictures / name) as image:
            assert min(image.size) > 400
            assert np.asarray(image).std() > 10, name


def test_every_evaluation_writes_its_detections(undisturbed: Path) -> None:
    files = sorted((undisturbed / "eval").iterdir())
    endings = (".classes.csv", ".json", ".png")
    names = [
        f"{name}{ending}" for name in ("step-000004", f"step-{STEPS:06d}") for ending in endings
    ]
    assert [file.name for file in files] == names
    boxes = [json.loads(file.read_text()) for file in files if file.suffix == ".json"]
    assert all(isinstance(content, list) for content in boxes)


def test_checkpoints_of_the_best_and_the_last_evaluation_are_kept(undisturbed: Path) -> None:
    checkpoints = undisturbed / "checkpoints"
    best, last = (read_checkpoint(checkpoints / name) for name in ("best", "last"))
    maps = {
        record["step"]: record["map"] for record in read_records(undisturbed, kind="evaluation")
    }
    assert last.position.step == STEPS
    assert maps[best.position.step] == max(maps.values()) == last.position.best_map
    assert last.position.map_here == maps[STEPS]
    # checkpoint.keep=3 would keep more than the two that there are.
    names = {"best", "last", "step-000004", f"step-{STEPS:06d}"}
    assert {path.name for path in checkpoints.iterdir()} == names


def test_each_checkpoint_has_a_model_card_with_its_metrics(undisturbed: Path) -> None:
    checkpoints = undisturbed / "checkpoints"
    for record in read_records(undisturbed, kind="evaluation"):
        folder = checkpoints / f"step-{record['step']:06d}"
        text = (folder / "MODEL_CARD.md").read_text()
        head = YAML(typ="safe").load(text.split("---\n")[1])
        metrics = head["model-index"][0]["results"][0]["metrics"]
        assert metrics[0]["type"] == "map"
        assert metrics[0]["value"] == pytest.approx(record["map"], abs=1e-4)
        assert f"RetinaNet-ResNeXt50, step {record['step']}\n" in text
        assert f"predict --checkpoint {folder} photo.jpg" in text
        assert "was trained on synthetic images" in text
        assert "training images: the metrics" not in text  # No image is in both splits
        assert f"| training | {SETTINGS[0].rpartition('=')[2]} | " in text
        assert {path.name for path in folder.iterdir()} == {
            "MODEL_CARD.md",
            "model.safetensors",
            "optimizer.safetensors",
            "state.json",
        }


def test_overwrite_starts_again_and_a_failed_model_card_does_not_end_training(
    undisturbed: Path, tmp_path: Path, train_here: TrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have had the images that are in both splits."""
    shared_images = []

    def fail(facts: model_card.CardFacts) -> str:
        shared_images.append(facts.shared_images)
        raise ValueError("no such fact")

    monkeypatch.setattr(model_card, "model_card", fail)
    scenes = undisturbed / "scenes"
    labels = scenes / "validation" / "labels" / "openimages-mlperf.json"
    same = (f"data.train_annotations={labels}", f"data.train_images={labels.parents[1] / 'data'}")
    changes = ("training.max_steps=1", "evaluation.pictures=0", "data.scenes=null", *same)
    run = tmp_path / "cardless"
    (run / "checkpoints" / "step-000099").mkdir(parents=True)
    mark_as_run(run)
    (run / "metrics.jsonl").write_text('{"kind": "step", "step": 99}\n')
    arguments = settings_in(tmp_path, "cardless", *changes, f"data.root={scenes}")
    outcome = train_here(*arguments, WITHOUT_STATE, "--overwrite")
    assert outcome.code == 0 and outcome.errors == ""
    assert [record["step"] for record in read_records(run, kind="step")] == [1]
    assert not (run / "checkpoints" / "step-000099").exists()
    assert (run / "checkpoints" / "last" / "model.safetensors").is_file()
    assert "MODEL_CARD.md: cannot be written: ValueError: no such fact; training" in outcome.output
    assert shared_images == [2]
    shutil.rmtree(run)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--resume, --overwrite, or run.name=NEW"),
        (["--resume", "data.image_size=96"], "image_size was [64, 96], is now 96"),
        (["--resume", "model.trainable_layers=4"], "trainable_layers was 5, is now 4"),
        (["--resume", "training.optimizer=lamb"], "training.optimizer was adam, is now lamb"),
        (["--resume", "run.seed=5"], "run.seed was 0, is now 5"),
        (
            ["--resume", "data.scenes.train=9"],
            "data.scenes was {'train': 4, 'validation': 2}",
        ),
    ],
)
def test_run_is_not_overwritten_or_resumed_with_incompatible_settings(
    words: list[str], named: str, undisturbed: Path, train_here: TrainHere
) -> None:
    before = snapshot(undisturbed)
    outcome = train_here(*settings_in(undisturbed.parent, "undisturbed"), *words)
    assert outcome.code == 2 and outcome.errors.count("\n") == 1
    assert named in outcome.errors
    assert snapshot(undisturbed) == before


def test_resuming_a_finished_run_changes_nothing(undisturbed: Path, train_here: TrainHere) -> None:
    weights = undisturbed / "checkpoints" / "last" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    metrics = (undisturbed / "metrics.jsonl").read_text()
    outcome = train_here(*settings_in(undisturbed.parent, "undisturbed"), "--resume")
    assert outcome.code == 0 and outcome.errors == ""
    assert f"finished after step {STEPS}; best mAP " in outcome.output
    assert "increase training.epochs or training.max_steps to continue" in outcome.output
    assert weights.stat().st_mtime_ns == before
    assert (undisturbed / "metrics.jsonl").read_text() == metrics


def test_run_without_a_checkpoint_starts_again_and_continues_with_another_batch_size(
    root: Path, train_here: TrainHere
) -> None:
    run = root / "early"
    (run / "checkpoints" / ".step-000001.partial").mkdir(parents=True)
    mark_as_run(run)
    (run / "config.yaml").write_text("run: {name: early}\n")
    (run / "metrics.jsonl").write_text('{"kind": "step", "step": 1}\n')
    changes = ("data.scenes.train=8", "evaluation.pictures=0", WITHOUT_STATE)
    arguments = settings_in(root, "early", *changes, "training.epochs=2", "--resume")
    first = train_here(*arguments, "training.max_steps=3")
    assert first.code == 0, first.errors
    assert re.search(rf"{re.escape(str(run))}: .*step 0$", first.output, re.MULTILINE)
    assert [record["step"] for record in read_records(run, kind="step")] == [1, 2, 3]
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["best", "last", "step-000003"]
    # After six of the epoch's eight images.
    changes = ("training.batch_size=4", "training.max_steps=null", "training.weight_decay=0.01")
    outcome = train_here(*arguments, *changes)
    assert outcome.code == 0, outcome.errors
    shown = " ".join(outcome.output.split())
    assert "resumed after step 3" in shown
    assert "training.batch_size was 2, is now 4; training.weight_decay was 0.0" in shown
    assert "training continues from the same image, but not bit for bit" in shown
    # Two images are no batch of four: the second epoch follows, with two steps.
    records = read_records(run, kind="step")
    assert [(record["step"], record["epoch"]) for record in records[3:]] == [(4, 1.5), (5, 2.0)]
    assert read_checkpoint(run / "checkpoints" / "last").position.epoch == 2
    shutil.rmtree(run)


def test_run_without_a_complete_checkpoint_is_not_restarted(
    undisturbed: Path, tmp_path: Path, train_here: TrainHere
) -> None:
    run = tmp_path / "undisturbed"
    shutil.copytree(undisturbed, run, copy_function=os.link, symlinks=True)
    for folder in (run / "checkpoints").glob("step-*"):
        (folder / "optimizer.safetensors").unlink()
    before = snapshot(run)
    outcome = train_here(*settings_in(tmp_path, "undisturbed"), "--resume")
    assert outcome.code == 2 and outcome.errors.count("\n") == 1
    assert f"step-{STEPS:06d}/optimizer.safetensors: cannot be read" in outcome.errors
    assert str(run / "checkpoints") in outcome.errors and "--overwrite" in outcome.errors
    assert snapshot(run) == before


@pytest.mark.exhaustive
def test_starting_a_loading_process_within_an_epoch_keeps_the_losses(
    root: Path, train_here: TrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "LARGEST_SHARE", 0.0)
    monkeypatch.setattr(data, "FIRST_STEPS", 1)
    monkeypatch.setattr(data, "STEPS_MEASURED", 2)
    losses = {}
    for workers in ("auto", "0"):
        name = f"workers-{workers}"
        changes = ("data.scenes.train=8", f"data.workers={workers}")
        outcome = train_here(*settings_in(root, name, *changes))
        assert outcome.code == 0, outcome.errors
        assert ("a separate process loads from now on" in outcome.output) == (workers == "auto")
        steps = read_records(root / name, kind="step")
        assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
        losses[workers] = [record["loss"] for record in steps]
    assert losses["auto"] == pytest.approx(losses["0"], rel=1e-4)


def test_configuration_error_leaves_no_lock_file_on_a_file_system_without_locks(
    without_locks_library: Path, tmp_path: Path
) -> None:
    arguments = settings_in(tmp_path, "mine", "training.gradient_accumulation=100")
    environment = without_locks(without_locks_library, errno.ENOLCK)
    outcome = ended(start_training(*arguments, environment=environment))
    note, error = outcome.errors.splitlines()
    assert outcome.code == 2 and "training.gradient_accumulation" in error
    assert note.startswith(f"warning: {tmp_path / 'mine'}: its file system has no locks")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def without_locks_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_library(tmp_path_factory.mktemp("library"))


def test_nonfinite_losses_are_skipped_up_to_the_limit(root: Path, train_here: TrainHere) -> None:
    changes = ["training.learning_rate=1e30", "training.warmup_epochs=0", "run.seed=1"]
    changes += ["training.on_nonfinite=skip", "training.nonfinite_limit=2", "data.scenes.train=8"]
    outcome = train_here(*settings_in(root, "diverged", *changes), "launch.threads=1")
    assert outcome.code == 3
    assert outcome.errors.startswith("error: loss not finite at step 4: ")
    assert outcome.errors.count("\n") == 1
    assert "training.nonfinite_limit=2" in outcome.errors and ".jpg)" in outcome.errors
    assert outcome.output.count("; the step was skipped, training continues\n") == 2
    run = root / "diverged"
    steps = read_records(run, kind="step")
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert steps[0]["gradient_norm"] > 0
    assert steps[1]["loss"] is steps[1]["gradient_norm"] is None
    skipped = read_records(run, kind="nonfinite")
    assert [record["skipped_steps"] for record in skipped] == [1, 2]
    report = json.loads((run / "checkpoints" / "nonfinite-000004" / "report.json").read_text())
    before = {"step": 1, "gradient_norm": steps[0]["gradient_norm"]}
    assert report["gradient_norms_before"] == [before]
    assert report["loss_is_finite"] is False and report["learning_rate"] > 1e29
    [rank] = report["ranks"]
    [batch] = rank["batches"]
    assert "nan" in batch["losses"].values() and len(batch["images"]) == 2


@pytest.mark.exhaustive
def test_run_resumed_after_a_skipped_step_is_bit_identical(
    root: Path, train_here: TrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ["training.schedule=constant", "training.on_nonfinite=skip", "evaluation.pictures=0"]
    changes += ["evaluation.every=1"]  # also after step 4, where the first piece ends

    def run(name: str, *more: str, broken: int) -> Path:
        """Return a run in which batch number `broken` has a NaN pixel."""
        numbers = count(1)

        def planted(
            prepared: PreparedTraining, batch: Batch, **forms: Any
        ) -> dict[str, torch.Tensor]:
            if next(numbers) == broken:
                batch = batch._replace(images=batch.images.float())
                batch.images[0, 1, 20, 30] = math.nan
            return batch_losses(prepared, batch, **forms)

        monkeypatch.setattr(loop, "batch_losses", planted)
        outcome = train_here(*settings_in(root, name, *changes, *more))
        assert outcome.code == 0, outcome.errors
        assert ("not finite" in outcome.output) == (broken == 3)
        return root / name

    whole = run("skipped", "training.max_steps=7", broken=3)
    run("skipped-in-pieces", "training.max_steps=4", broken=3)
    pieces = run("skipped-in-pieces", "training.max_steps=7", "--resume", broken=0)
    assert_same_end(pieces, whole, step=7)
    assert read_checkpoint(pieces / "checkpoints" / "last").position.skipped_steps == 1
    for folder in (whole, pieces):
        assert [record["step"] for record in read_records(folder, kind="step")] == [*range(1, 8)]
        assert [record["step"] for record in read_records(folder, kind="nonfinite")] == [3]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Return a COCO folder with one image per split and a category id above 90."""
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 64, "height": 64}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 95, "bbox": [1, 1, 30, 30]}],
        "categories": [{"id": 3, "name": "three"}, {"id": 95, "name": "ninety-five"}],
    }
    folder = tmp_path / "coco"
    (folder / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        (folder / split).mkdir()
        Image.new("RGB", (64, 64)).save(folder / split / "a.png")
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    (folder / "annotations" / "other.json").write_text('{"info": {}}')
    return folder


CONTIGUOUS = ["data.class_indices=contiguous", "model.num_classes=null"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["data.root={folder}/none"], ["data.root: {folder}/none", "is not a folder"]),
        (["data.root=null"], ["data.root: not set", "data.train_annotations"]),
        (
            ["data.train_annotations={folder}/annotations/other.json"],
            ["other.json: categories: missing", "not COCO's format"],
        ),
        (["data.train_images={folder}/none"], ["data.train_images: {folder}/none"]),
        (
            [],
            ["instances_train2017.json: categories[1].id: 95 (ninety-five)", "0 to 90"],
        ),
        (
            [*CONTIGUOUS, "model.pretrained_backbone=null"],
            ["model.", "needs pretrained weights", "model.norm=batch"],
        ),
        (
            [*CONTIGUOUS, "model.pretrained_backbone={folder}/none.safetensors"],
            ["model.pretrained_backbone: {folder}/none.safetensors does not exist"],
        ),
        (
            [*CONTIGUOUS, "data.scenes={{}}"],
            ["data.root: {folder} is given together with data.scenes"],
        ),
        (
            [
                *CONTIGUOUS,
                "model.pretrained_backbone=null",
                "model.norm=batch",
                "model.trainable_layers=5",
                "training.gradient_accumulation=3",
            ],
            ["training.gradient_accumulation: 3", "only 1"],
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_files(
    arguments: list[str], named: list[str], dataset: Path, train_here: TrainHere, tmp_path: Path
) -> None:
    given = [word.format(folder=dataset) for word in arguments]
    roots = [] if any(word.startswith("data.root=") for word in given) else [f"data.root={dataset}"]
    for annotations in dataset.glob("annotations/instances_*.json"):
        open_annotations(annotations)  # makes the index, which a next start will use
    before = snapshot(tmp_path)
    outcome = train_here("--config", "coco.yaml", *roots, *given, f"run.root={tmp_path / 'runs'}")
    assert outcome.code == 2
    assert outcome.errors.startswith("error: ") and outcome.errors.count("\n") == 1
    for part in named:
        assert part.format(folder=dataset) in outcome.errors
    assert snapshot(tmp_path) == before
