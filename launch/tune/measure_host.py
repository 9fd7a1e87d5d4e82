"""All that the planner wants to know of this host, measured in minutes, part after part.

What is measured is handed on at once, so that an interrupted measurement goes on where it stopped.
"""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from launch.scale.numbers import Measured
from launch.start.mpirun import Mpirun
from launch.tune.measure import (
    Trained,
    added,
    combination_of,
    measure_steps,
    shape_of,
    step_time,
)
from launch.tune.measurements import Measurements
from launch.tune.network import rank_counts_of_host
from launch.tune.step_time import Shape
from launch.tune.trained_data import TrainedData
from launch.tune.unfinished import JobsOfShape, Unfinished
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

EVALUATION_IMAGES = 2
RUNS, WARM_UP = 3, 2
"""Of evaluation and optimizer."""
METRIC_SHARE = 10
"""The metric is computed of a tenth of the images; it takes ten times as long of all."""
BUCKET_BYTES = 25 * 2**20
"""Of gradients that DDP exchanges together, the last of which nothing hides."""
SIZES = (2**12, 2**20, 2**25)
"""Of measured all-reduces. [bytes]"""

Keep = Callable[[Unfinished], None]
"""Told what is measured until now."""


@dataclass(frozen=True, kw_only=True)
class WhatToMeasure:
    """On this host."""

    command: str
    measured: tuple[Shape, ...]
    shapes: tuple[Shape, ...]
    """All that the host has the cores and the memory for."""
    data: TrainedData
    overrides: tuple[str, ...]
    """Of the user."""
    job_overrides: tuple[str, ...]
    """Of the measured jobs: these, and drawn scenes where there is no data set."""
    config: Config
    """Of the user's overrides."""
    cores: int
    sockets: int
    rounds: int


def fresh(asked: WhatToMeasure) -> Unfinished:
    """A measurement of which nothing is measured yet."""
    return Unfinished(
        command=asked.command,
        environment=environment(),
        data=asked.data.name,
        overrides=asked.overrides,
        question=of_question(asked) | {"rounds": asked.rounds, "jobs": list(asked.job_overrides)},
        measured=asked.measured,
        shapes=asked.shapes,
    )


def measure_host(
    asked: WhatToMeasure, begun: Unfinished, *, keep: Keep, mpirun: Mpirun, console: Console
) -> Measurements:
    """Measure what is missing; every part says what it does.

    Args:
        asked: What there is to measure.
        begun: What is measured; `fresh`, or of an earlier command.
        keep: Told after every job, and after every other part.
        mpirun: Starts the jobs.
        console: Where progress is shown.

    Raises:
        JobFailedError: Ranks could not go on; they have said why.
        WorkerDiedError: The evaluation could not.
        KeyboardInterrupt: Ctrl-C.
    """
    with tempfile.TemporaryDirectory(prefix="tune-") as folder, other_load() as others:
        scenes = Path(folder, "scenes")
        found = with_steps(asked, begun, keep=keep, mpirun=mpirun, scenes=scenes, console=console)
        if found.all_reduces is None:
            console.print("all-reduces …")
            found = with_all_reduces(asked, found, mpirun=mpirun)
            keep(found)
        if found.evaluation_seconds is None:
            console.print("evaluation …")
            found = replace(found, evaluation_seconds=evaluation_seconds(asked))
            keep(found)
        if found.metric_seconds is None:
            console.print("COCO's metric …")
            found = replace(found, metric_seconds=metric_seconds(asked.data.evaluated_images))
            keep(found)
        if found.update_seconds is None:
            console.print("the optimizer's step …")
            found = replace(found, update_seconds=update_seconds(asked))
            keep(found)
    return finished(asked, found, busy_cores=others.cores)


def with_steps(
    asked: WhatToMeasure,
    begun: Unfinished,
    *,
    keep: Keep,
    mpirun: Mpirun,
    scenes: Path,
    console: Console,
) -> Unfinished:
    """All jobs, of which some may have run."""
    measured = measure_steps(
        begun.measured,
        Trained(asked.data.config, asked.job_overrides, rounds=asked.rounds),
        mpirun=mpirun,
        scenes=scenes,
        console=console,
        before=begun.jobs,
        keep=lambda until_now: keep(with_jobs(begun, until_now)),
    )
    return with_jobs(begun, measured)


def with_jobs(begun: Unfinished, measured: Sequence[Measured]) -> Unfinished:
    """These jobs in the place of those before."""
    jobs = [
        JobsOfShape(shape=shape_of(one.combination), jobs=tuple(map(tuple, one.jobs)))
        for one in measured
    ]
    return replace(begun, jobs=tuple(jobs))


def with_all_reduces(asked: WhatToMeasure, begun: Unfinished, *, mpirun: Mpirun) -> Unfinished:
    """Between ranks of this host; on one core there are none."""
    if asked.cores == 1:
        return replace(begun, all_reduces=(), all_reduces_over="one core")
    found = [
        measure_all_reduces(sizes=SIZES, ranks=ranks, mpirun=mpirun)
        for ranks in rank_counts_of_host(asked.cores, sockets=asked.sockets)
    ]
    times = tuple(itertools.chain.from_iterable(one.times for one in found))
    return replace(begun, all_reduces=times, all_reduces_over=found[-1].over)


def finished(asked: WhatToMeasure, found: Unfinished, *, busy_cores: float) -> Measurements:
    """What the planner keeps of a whole measurement.

    `busy_cores`: that other work kept busy, while the last command measured.
    """
    assert found.all_reduces is not None
    assert found.evaluation_seconds is not None and found.metric_seconds is not None
    measured = [
        Measured(combination=combination_of(one.shape), jobs=one.jobs) for one in found.jobs
    ]
    return Measurements(
        **of_question(asked),
        command=found.command,
        environment=found.environment,
        shapes=found.shapes,
        steps=tuple(step_time(one) for one in measured),
        added=tuple(added(measured)),
        all_reduces=found.all_reduces,
        all_reduces_over=found.all_reduces_over,
        backward_share=backward_share(measured),
        data_share=max(one.data_share for one in measured),
        evaluation_seconds=found.evaluation_seconds,
        metric_seconds=found.metric_seconds,
        busy_cores=busy_cores,
        update_seconds=found.update_seconds,
    )


def of_question(asked: WhatToMeasure) -> dict[str, Any]:
    """What of the measurements' file need not be measured, as JSON has it."""
    config = asked.config
    gradients = gradient_bytes(asked)
    return {
        "cores": asked.cores,
        "sockets": asked.sockets,
        "data": asked.data.name,
        "config": asked.data.config,
        "overrides": list(asked.overrides),
        "images": asked.data.images,
        "evaluated_images": asked.data.evaluated_images,
        "batch_size": config.training.batch_size,
        "every": config.evaluation.every,
        "image_size": config.data.image_size,
        "classes": asked.data.classes,
        "precision": config.engine.precision,
        "compress": config.distributed.compress,
        "gradient_bytes": gradients,
        "last_bytes": min(gradients, BUCKET_BYTES),
    }


def metric_seconds(images: int) -> float:
    """COCO's metric of the whole validation split, from a tenth of it."""
    tenth = max(1, images // METRIC_SHARE)
    seconds: float = measured_metric("faster-coco-eval", images=tenth, found=FOUND)["seconds"]
    return seconds * images / tenth


def evaluation_seconds(asked: WhatToMeasure) -> float:
    """Of an image, of one thread."""
    config = asked.config
    evaluation = Contestant(
        name="evaluation",
        about="from images to boxes, as train.py evaluates",
        recipe=f"{RECIPES}.evaluation",
        options={
            "whose": "ours",
            "norm": config.model.norm,
            "precision": config.engine.precision,
        },
        environment=PINNED,
    )
    workload = Workload(
        images=EVALUATION_IMAGES, image_size=config.data.image_size, classes=asked.data.classes
    )
    return seconds_of(evaluation, workload) * asked.cores / EVALUATION_IMAGES


def update_seconds(asked: WhatToMeasure) -> float:
    """The optimizer's step over all weights, by one thread."""
    step = Contestant(
        name="optimizer",
        about="the optimizer's step, as of compute groups",
        recipe=f"{RECIPES}.optimizer_step",
        options={"name": asked.config.training.optimizer, "fused": True},
        environment=PINNED | {"OMP_NUM_THREADS": "1"},
    )
    workload = Workload(
        images=1, image_size=asked.config.data.image_size, classes=asked.data.classes
    )
    return seconds_of(step, workload)


def seconds_of(contestant: Contestant, workload: Workload) -> float:
    """Median of some runs, the first of which do not count."""
    worker = contestant_worker(contestant, workload)
    try:
        seconds = [worker.run().seconds for _ in range(WARM_UP + RUNS)]
    finally:
        worker.close()
    return median(seconds[WARM_UP:])


def gradient_bytes(asked: WhatToMeasure) -> int:
    """Of one rank, as they travel."""
    from retinanet.preflight.model_bytes import model_bytes  # noqa: PLC0415 - loads torch

    config = asked.config
    trained = model_bytes(config.model, config.training, num_classes=asked.data.classes).trained
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
