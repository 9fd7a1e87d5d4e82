"""One probe run: `train.py` at a global batch size, until a target or the end of its epochs."""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.tune.probed import Evaluated, Probed, Probes
from profiling.bench.measured_job import REPOSITORY, JobFailedError, running
from retinanet.exit_codes import FINISHED, STOPPED_BY_SIGNAL

SECONDS_FOR_A_CHECKPOINT = 600.0
"""Until a training that was asked to stop is killed: its step comes first."""
PROGRESS = "epoch "
"""Begins the lines of `train.py` that are passed on."""


@dataclass(frozen=True, kw_only=True)
class ProbedTraining:
    """What all probe runs train, and where."""

    config: str
    overrides: tuple[str, ...]
    local_batch: int
    """Images at once, as the configuration has them; larger batches are made of several."""
    folder: Path
    """Of the runs."""


def run_probe(
    training: ProbedTraining,
    probes: Probes,
    *,
    batch_size: int,
    seed: int,
    say: Callable[[str], None],
) -> Probed:
    """Train, from where an earlier command has stopped; returns what the evaluations said.

    Args:
        training: What.
        probes: Until which target, with which learning rate.
        batch_size: Images of a step.
        seed: Of weights, order and augmentation.
        say: Told the lines of its progress.

    Raises:
        JobFailedError: It did not end well; it has said why.
        KeyboardInterrupt: It was stopped, after writing a checkpoint.
    """
    from retinanet.training.metrics_file import read_metrics  # noqa: PLC0415 - loads torch

    name = f"batch-{batch_size}-seed-{seed}"
    words = probe_words(training, probes, batch_size=batch_size, seed=seed, name=name)
    began = time.monotonic()
    run_training(words, say=say)
    evaluations = evaluations_in(read_metrics(training.folder / name / "metrics.jsonl"))
    return Probed(
        batch_size=batch_size,
        seed=seed,
        evaluations=evaluations,
        is_over=all(one.score < probes.target_map for one in evaluations),
        seconds=time.monotonic() - began,
    )


def probe_words(
    training: ProbedTraining, probes: Probes, *, batch_size: int, seed: int, name: str
) -> list[str]:
    """The command; on few cores a large batch is made of small ones, one after another."""
    local = math.gcd(training.local_batch, batch_size)
    return [
        *(sys.executable, str(REPOSITORY / "train.py"), "--config", training.config),
        *("--auto-resume", *training.overrides),
        f"run.root={training.folder}",
        f"run.name={name}",
        f"run.seed={seed}",
        f"training.batch_size={local}",
        f"training.gradient_accumulation={batch_size // local}",
        f"training.learning_rate={probes.rule.scaled(batch_size):.3g}",
        f"training.target_map={probes.target_map:g}",
        "evaluation.every=1",
        "evaluation.pictures=0",
        "checkpoint.keep=1",
    ]


def run_training(words: Sequence[str], *, say: Callable[[str], None]) -> None:
    """Run `train.py`; Ctrl-C and SIGTERM let it write a checkpoint first.

    Raises:
        JobFailedError: It did not end well; it has said why.
        KeyboardInterrupt: It was stopped.
    """
    with running(words, dict(os.environ), patience_s=SECONDS_FOR_A_CHECKPOINT) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(PROGRESS):
                    say(line.rstrip())
        except KeyboardInterrupt:
            say("stopping: the training ends its step and writes a checkpoint")
            raise
        code = process.wait()
    if code == STOPPED_BY_SIGNAL:
        raise KeyboardInterrupt
    if code != FINISHED:
        raise JobFailedError(code if code > 0 else 128 - code)


def evaluations_in(records: Sequence[dict[str, Any]]) -> tuple[Evaluated, ...]:
    """Those among a run's records; a metric that does not exist counts as none."""
    return tuple(
        Evaluated(epoch=float(one["epoch"]), score=float(one["map"] or 0.0))
        for one in records
        if one["kind"] == "evaluation"
    )
