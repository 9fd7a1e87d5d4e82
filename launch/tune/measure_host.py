"""All that the planner wants to know of this host, measured in minutes."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from launch.scale.numbers import Measured
from launch.start.mpirun import Mpirun
from launch.tune.measure import Trained, added, measure_steps, step_time
from launch.tune.measurements import Measurements
from launch.tune.step_time import Shape
from profiling.ablate.plan import PINNED
from profiling.bench.all_reduce_job import measure_all_reduces
from profiling.bench.benchmark import RECIPES
from profiling.bench.contestant import Contestant
from profiling.bench.environment import environment
from profiling.bench.metric_benchmark import FOUND
from profiling.bench.metric_benchmark import measured as measured_metric
from profiling.bench.other_load import other_load
from profiling.bench.worker_process import contestant_worker
from profiling.bench.workload import Workload
from retinanet.config import Config

EVALUATION = Contestant(
    name="evaluation",
    about="from images to boxes, as train.py evaluates",
    recipe=f"{RECIPES}.evaluation",
    options={"whose": "ours"},
    environment=PINNED,
)
EVALUATION_IMAGES = 2
EVALUATION_RUNS, EVALUATION_WARM_UP = 3, 2
METRIC_SHARE = 10
"""The metric is computed of a tenth of the images; it takes ten times as long of all."""
BUCKET_BYTES = 25 * 2**20
"""Of gradients that DDP exchanges together, the last of which nothing hides."""
SIZES, RANKS = (2**12, 2**20, 2**25), 2
"""Of measured all-reduces, the sizes in bytes."""


@dataclass(frozen=True, kw_only=True)
class WhatToMeasure:
    """On this host."""

    command: str
    measured: Sequence[Shape]
    shapes: tuple[Shape, ...]
    """All that the host has the cores and the memory for."""
    config_name: str
    overrides: tuple[str, ...]
    """Of the user."""
    job_overrides: tuple[str, ...]
    """Of the measured jobs: these, and drawn scenes where there is no data set."""
    config: Config
    """Of both."""
    classes: int
    evaluated_images: int
    cores: int
    sockets: int
    rounds: int


def measure_host(asked: WhatToMeasure, *, mpirun: Mpirun, console: Console) -> Measurements:
    """Measure; every part says what it does.

    Raises:
        JobFailedError: Ranks could not go on; they have said why.
        WorkerDiedError: The evaluation could not.
    """
    trained = Trained(asked.config_name, asked.job_overrides, rounds=asked.rounds)
    with tempfile.TemporaryDirectory(prefix="tune-") as folder, other_load() as others:
        scenes = Path(folder, "scenes")
        found = measure_steps(
            asked.measured, trained, mpirun=mpirun, scenes=scenes, console=console
        )
        console.print("all-reduces …")
        ranks = min(RANKS, asked.cores)
        all_reduces, over = measure_all_reduces(sizes=SIZES, ranks=ranks, mpirun=mpirun)
        console.print("evaluation …")
        evaluation = evaluation_seconds(asked)
        console.print("COCO's metric …")
        metric = metric_seconds(asked)
    return Measurements(
        **of_question(asked),
        environment=environment(),
        steps=tuple(step_time(one) for one in found),
        added=tuple(added(found)),
        all_reduces=tuple(all_reduces),
        all_reduces_over=over,
        backward_share=backward_share(found),
        data_share=max(one.data_share for one in found),
        evaluation_seconds=evaluation,
        metric_seconds=metric,
        busy_cores=others.cores,
    )


def of_question(asked: WhatToMeasure) -> dict[str, Any]:
    """What of the measurements' file need not be measured."""
    config = asked.config
    gradients = gradient_bytes(asked)
    return {
        "command": asked.command,
        "cores": asked.cores,
        "sockets": asked.sockets,
        "shapes": asked.shapes,
        "config": asked.config_name,
        "overrides": asked.overrides,
        "image_size": config.data.image_size,
        "classes": asked.classes,
        "precision": config.engine.precision,
        "compress": config.distributed.compress,
        "gradient_bytes": gradients,
        "last_bytes": min(gradients, BUCKET_BYTES),
    }


def metric_seconds(asked: WhatToMeasure) -> float:
    """COCO's metric of the whole validation split, from a tenth of it."""
    tenth = max(1, asked.evaluated_images // METRIC_SHARE)
    seconds: float = measured_metric("faster-coco-eval", images=tenth, found=FOUND)["seconds"]
    return seconds * asked.evaluated_images / tenth


def evaluation_seconds(asked: WhatToMeasure) -> float:
    """Of an image, of one thread."""
    workload = Workload(
        images=EVALUATION_IMAGES, image_size=asked.config.data.image_size, classes=asked.classes
    )
    worker = contestant_worker(EVALUATION, workload)
    try:
        seconds = [worker.run().seconds for _ in range(EVALUATION_WARM_UP + EVALUATION_RUNS)]
    finally:
        worker.close()
    return median(seconds[EVALUATION_WARM_UP:]) * asked.cores / EVALUATION_IMAGES


def gradient_bytes(asked: WhatToMeasure) -> int:
    """Of one rank, as they travel."""
    from retinanet.preflight.model_bytes import model_bytes  # noqa: PLC0415 - loads torch

    config = asked.config
    trained = model_bytes(config.model, config.training, num_classes=asked.classes).trained
    return trained // 2 if config.distributed.compress == "bf16" else trained


def backward_share(found: Sequence[Measured]) -> float:
    """Of a step, what is neither forward pass and losses nor waiting for data; median."""
    return median(
        1 - (forward + data) / whole
        for one in found
        for job in one.jobs
        for rank in job
        for forward, data, whole in zip(
            rank.forward_seconds, rank.data_seconds, rank.seconds, strict=True
        )
    )
