"""Folders of runs with an `mlperf.log` written by the real logger, without training."""

import json
from collections.abc import Sequence
from pathlib import Path

from torch import nn
from torch.optim import Adam

from launch.process_group import ProcessGroup
from retinanet.config import Config, config_to_tree
from retinanet.config_file import load_config
from retinanet.mlperf.log import begin_log, running_log
from retinanet.mlperf.rules import TRAINING_IMAGES, VALIDATION_IMAGES
from retinanet.training.run_folder import collect_environment

CLOSED = (
    "data.root=/data",
    "mlperf.division=closed",
    "mlperf.organization=Us",
    "training.gradient_accumulation=128",
)
"""Batches of 2: MLPerf's smallest global batch size that was measured."""


def closed_config(*changes: str) -> Config:
    """Return a configuration of the closed division."""
    return load_config("openimages.yaml", [*CLOSED, *changes])


def write_run(folder: Path, config: Config, *, accuracies: Sequence[float]) -> Path:
    """Write a run with an evaluation after each epoch; it ends at the target mAP."""
    folder.mkdir(parents=True)
    model = nn.Linear(1, 1)
    optimizer = Adam(model.parameters())
    target = config.training.target_map
    with running_log(config, group=ProcessGroup(), local_rank=0) as log:
        begin_log(
            log,
            model=model,
            optimizer=optimizer,
            name="adam",
            training_images=TRAINING_IMAGES,
            validation_images=VALIDATION_IMAGES,
        )
        log.write_to(folder / "mlperf.log", step=0, is_evaluated=False)
        for epoch, accuracy in enumerate(accuracies, start=1):
            step = 10 * epoch
            log.epoch_started(epoch, step=step - 10)
            log.stepped(images=256, seconds=2.0)
            log.epoch_stopped(epoch, step=step)
            log.evaluation_started(epoch=epoch, step=step)
            log.evaluated(accuracy, epoch=epoch, step=step)
            if target is not None and accuracy >= target:
                log.reached_target()
    (folder / "environment.json").write_text(json.dumps(collect_environment(["train.py"])))
    (folder / "config.yaml").write_text(json.dumps(config_to_tree(config)))  # JSON is YAML
    return folder


def write_runs(folder: Path, *epochs: int, changes: Sequence[str] = ()) -> list[Path]:
    """Write closed runs that converged after the given numbers of epochs."""
    return [
        write_run(
            folder / f"run{number}",
            closed_config(f"run.seed={number}", *changes),
            accuracies=[0.2] * (count - 1) + [0.35],
        )
        for number, count in enumerate(epochs)
    ]
