"""Measure this host: steps by ranks, threads and local batch, evaluation, all-reduces.

TODO-DOC All that the planner wants to know of this host, measured in minutes, part after part.

What is measured is handed on at once, so that an interrupted measurement goes on where it stopped.

TODO-DOC What is trained: MLPerf's part of OpenImages, or the data of any configuration.
"""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from common.errors import INTERRUPTED, InputError
from common.machine import environment
from launch.mpirun import Mpirun
from profiling.ablate.plan import PINNED
from profiling.bench.job import JobFailedError, measure_all_reduces, slowest, slowest_held_back
from profiling.bench.metric_benchmark import FOUND, measured_metric
from profiling.bench.results import RECIPES, background_load
from profiling.bench.variant import Variant, Workload
from profiling.bench.worker_pool import variant_worker
from profiling.studies.scale.study import (
    Combination,
    Job,
    Measured,
    Rounds,
    job_of_combination,
    run_rounds,
)
from profiling.studies.tune.measurements import Added, JobsOfShape, Measurements, PartialMeasurement
from profiling.studies.tune.model import Shape, StepTime, rank_counts_of_host
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.mlperf.rules import TRAINING_IMAGES, VALIDATION_IMAGES

STEPS = 2
"""Of a job that count; beside each is one without exchange."""
WARM_UP = 2


@dataclass(frozen=True)
class Trained:
    """What the measured ranks train."""

    config: str
    overrides: tuple[str, ...]
    rounds: int
    """Jobs of each shape."""


def measure_steps(
    shapes: Sequence[Shape],
    trained: Trained,
    *,
    mpirun: Mpirun,
    scenes: Path,
    console: Console,
    before: Sequence[JobsOfShape] = (),
    keep: Callable[[Sequence[Measured]], None] = lambda measured: None,
) -> list[Measured]:
    """Run a job for each shape in each round.

    Args:
        shapes: In the order of the first round.
        trained: What.
        mpirun: Starts the jobs.
        scenes: Folder for drawn scenes.
        console: Where progress is shown.
        before: Jobs that have run, which are not run again.
        keep: Told all that is measured after each job.

    Raises:
        JobFailedError: One did not end well; its ranks have said why.
        KeyboardInterrupt: Ctrl-C.
    """
    combinations = [combination_of(one) for one in shapes]
    jobs: dict[Combination, list[Job]] = {
        combination_of(one.shape): list(one.jobs) for one in before
    }
    study = Rounds(combinations, trained.rounds, jobs, title="planner, steps")
    job_of = partial(
        job_of_combination,
        config=trained.config,
        overrides=trained.overrides,
        warm_up=WARM_UP,
        steps=STEPS,
        scenes=scenes,
        own_model=True,
    )
    kept = partial(keep_study, study, keep)
    run_rounds(study, job_of, mpirun=mpirun, console=console, keep=kept)
    if study.code == INTERRUPTED:
        raise KeyboardInterrupt
    if study.code:
        raise JobFailedError(study.code)
    return study.measured


def keep_study(study: Rounds, keep: Callable[[Sequence[Measured]], None]) -> None:
    """Hand on what a study has come to."""
    keep(study.measured)


def combination_of(shape: Shape) -> Combination:
    """A shape as jobs know it."""
    return Combination(ranks=shape.ranks, threads=shape.threads, batch_size=shape.batch_size)


def shape_of(one: Combination) -> Shape:
    """The way back."""
    return Shape(ranks=one.ranks, threads=one.threads, batch_size=one.batch_size)


def step_time(measured: Measured) -> StepTime:
    """The median step of a combination, without exchange of gradients."""
    one = measured.combination
    seconds = [
        value
        for job in measured.jobs
        for value in (slowest_held_back(job) if one.ranks > 1 else slowest(job))
    ]
    return StepTime(shape=shape_of(one), seconds=median(seconds))


def added(measured: Sequence[Measured]) -> list[Added]:
    """What the exchange added, of all combinations of several ranks.

    As a share of the step without it; each step is held against its neighbour.
    """
    return [
        Added(
            ranks=one.combination.ranks,
            batch_size=one.combination.batch_size,
            share=share / (1 - share),
        )
        for one in measured
        if (share := one.added_share) is not None
    ]


EVALUATION_IMAGES = 2
RUNS, HOST_WARM_UP = 3, 2
"""Of evaluation and optimizer."""
METRIC_SHARE = 10
"""The metric is computed of a tenth of the images; it takes ten times as long of all."""
BUCKET_BYTES = 25 * 2**20
"""Of gradients that DDP exchanges together, the last of which nothing hides."""
SIZES = (2**12, 2**20, 2**25)
"""Of measured all-reduces. [bytes]"""

Keep = Callable[[PartialMeasurement], None]
"""Told what is measured until now."""


@dataclass(frozen=True, kw_only=True)
class TrainedData:
    """A data set, and the configuration that trains on it."""

    name: str
    """As `--data` has it."""
    config: str
    images: int
    """Of an epoch."""
    evaluated_images: int
    classes: int


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


def fresh(asked: WhatToMeasure) -> PartialMeasurement:
    """A measurement of which nothing is measured yet."""
    return PartialMeasurement(
        command=asked.command,
        environment=environment(),
        data=asked.data.name,
        overrides=asked.overrides,
        question=of_question(asked) | {"rounds": asked.rounds, "jobs": list(asked.job_overrides)},
        measured=asked.measured,
        shapes=asked.shapes,
    )


def measure_host(
    asked: WhatToMeasure, begun: PartialMeasurement, *, keep: Keep, mpirun: Mpirun, console: Console
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
    with tempfile.TemporaryDirectory(prefix="tune-") as folder, background_load() as others:
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
    begun: PartialMeasurement,
    *,
    keep: Keep,
    mpirun: Mpirun,
    scenes: Path,
    console: Console,
) -> PartialMeasurement:
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


def with_jobs(begun: PartialMeasurement, measured: Sequence[Measured]) -> PartialMeasurement:
    """These jobs in the place of those before."""
    jobs = [
        JobsOfShape(shape=shape_of(one.combination), jobs=tuple(map(tuple, one.jobs)))
        for one in measured
    ]
    return replace(begun, jobs=tuple(jobs))


def with_all_reduces(
    asked: WhatToMeasure, begun: PartialMeasurement, *, mpirun: Mpirun
) -> PartialMeasurement:
    """Between ranks of this host; on one core there are none."""
    if asked.cores == 1:
        return replace(begun, all_reduces=(), all_reduces_over="one core")
    found = [
        measure_all_reduces(sizes=SIZES, ranks=ranks, mpirun=mpirun)
        for ranks in rank_counts_of_host(asked.cores, sockets=asked.sockets)
    ]
    times = tuple(itertools.chain.from_iterable(one.times for one in found))
    return replace(begun, all_reduces=times, all_reduces_over=found[-1].over)


def finished(asked: WhatToMeasure, found: PartialMeasurement, *, busy_cores: float) -> Measurements:
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
    evaluation = Variant(
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
    step = Variant(
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


def seconds_of(contestant: Variant, workload: Workload) -> float:
    """Median of some runs, the first of which do not count."""
    worker = variant_worker(contestant, workload)
    try:
        seconds = [worker.run().seconds for _ in range(HOST_WARM_UP + RUNS)]
    finally:
        worker.close()
    return median(seconds[HOST_WARM_UP:])


def gradient_bytes(asked: WhatToMeasure) -> int:
    """Of one rank, as they travel."""
    from retinanet.preflight.memory import model_bytes  # noqa: PLC0415

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


OPENIMAGES = "openimages"
"""The data whose epochs MLPerf's points tell."""
CLASSES = 264
"""Of MLPerf's part of OpenImages v6."""


def trained_data(name: str, overrides: Sequence[str], *, console: Console) -> TrainedData:
    """The data of a name that `--data` may have.

    Args:
        name: `openimages`, or a configuration: a path, or a name in `configs/`.
        overrides: On top of the configuration.
        console: Shows the progress of making an index, which annotations need once.

    Raises:
        InputError: The configuration is wrong, or its data is not there.
    """
    return openimages() if name == OPENIMAGES else configured(name, overrides, console=console)


def openimages() -> TrainedData:
    """MLPerf's part of OpenImages v6."""
    return TrainedData(
        name=OPENIMAGES,
        config="openimages.yaml",
        images=TRAINING_IMAGES,
        evaluated_images=VALIDATION_IMAGES,
        classes=CLASSES,
    )


def configured(name: str, overrides: Sequence[str], *, console: Console) -> TrainedData:
    """The data that a configuration names, or the scenes that it has drawn.

    Raises:
        InputError: The configuration is wrong, or its data is not there.
    """
    from retinanet.training.data import open_run_data  # noqa: PLC0415

    config = load_config(name, overrides)
    parts = config.training.gradient_accumulation
    if parts > 1:
        raise InputError(
            f"training.gradient_accumulation={parts}: the planner chooses the global batch; give "
            "training.gradient_accumulation=1"
        )
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        data = open_run_data(config, scenes_folder=Path(folder, "scenes"), console=console)
        return TrainedData(
            name=name,
            config=name,
            images=len(data.train),
            evaluated_images=len(data.validation),
            classes=data.classes.num_classes,
        )
