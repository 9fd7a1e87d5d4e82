"""Start a training, read what it writes while it runs, wait for its steps, and cut it back."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.files import read_json_lines
from retinanet.config_types import BEST
from retinanet.training.checkpoint import (
    LAST,
    checkpoint_folder,
    checkpoint_step,
    newest_first,
    point_to,
    read_checkpoint,
)
from retinanet.training.run_folder import ENVIRONMENT, FACTS
from tests.support.commands import start_program

ONE_STEP = (
    "data.scenes.train=4",
    "data.scenes.validation=2",
    "data.image_size=64",
    "training.batch_size=2",
    "training.max_steps=1",
    "training.optimizer=sgd",
    "evaluation.pictures=0",
    "engine.precision=float32",
    "model.norm=frozen",
    "model.trainable_layers=0",
    "run.name=tuned",
)
"""A run of one step that changes no layer of the backbone."""


def start_training(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start `retinanet train` with one thread, so that sums have a fixed order."""
    command = (sys.executable, "train.py", *arguments, "launch.threads=1")
    return start_program(*command, env=environment, start_new_session=True)


def read_records(run: Path, *, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind in a run's metrics.jsonl, which may not exist yet."""
    return [record for record in read_json_lines(run / "metrics.jsonl") if record["kind"] == kind]


def assert_same_end(run: Path, other: Path, *parts: str, step: int | None = None) -> None:
    """Assert that two runs end alike, bit for bit, at `step` if it is given.

    Weights, optimizer, other `parts` of the last checkpoint, random states, position, evaluations.
    """
    ours, theirs = (folder / "checkpoints" / "last" for folder in (run, other))
    for part in ("model.safetensors", "optimizer.safetensors", *parts):
        assert (ours / part).read_bytes() == (theirs / part).read_bytes(), part
    first, second = read_checkpoint(ours), read_checkpoint(theirs)
    assert first.position == second.position and step in (None, first.position.step)
    assert first.state.random_states == second.state.random_states
    evaluations, expected = (
        [record | {"seconds": None} for record in read_records(folder, kind="evaluation")]
        for folder in (run, other)
    )
    assert evaluations == expected


def wait_for_steps(run: Path, job: subprocess.Popen[str], *, count: int) -> None:
    """Wait until a run has recorded `count` steps; fail after two minutes, or if it ends before."""
    end = time.monotonic() + 120
    while True:
        running = job.poll() is None  # before the records are read: they may be its last ones
        if len(read_records(run, kind="step")) >= count:
            return
        assert running and time.monotonic() < end, f"{run}: fewer than {count} steps"
        time.sleep(0.01)


def mark_as_run(folder: Path) -> None:
    """Make a folder that of a run, by what every run has from its beginning."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ENVIRONMENT).write_text(json.dumps(dict.fromkeys(FACTS)))


def cut_back(run: Path, copy: Path, *, step: int) -> None:
    """Copy a run as if it had been killed between the checkpoint after `step` steps and the next.

    Its records go on, as those of a killed run do; the evaluation whose checkpoint was the best
    until then must be among those that the run kept.
    """
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    checkpoints = copy / "checkpoints"
    for folder in newest_first(run / "checkpoints"):
        if checkpoint_step(folder) <= step:  # linked, since a run replaces these files as a whole
            shutil.copytree(folder, checkpoints / folder.name, copy_function=os.link)
    records = read_records(run, kind="evaluation")
    maps = {record["step"]: record["map"] for record in records if record["step"] <= step}
    if maps:
        best = max(maps, key=maps.__getitem__)
        point_to(checkpoints / BEST, checkpoint_folder(checkpoints, best))
    point_to(checkpoints / LAST, checkpoint_folder(checkpoints, step))
