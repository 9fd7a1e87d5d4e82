"""Measure this host: steps by ranks, threads and local batch, evaluation, all-reduces."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from launch.scale.combination_job import job_of_combination
from launch.scale.combinations import Combination
from launch.scale.numbers import Measured
from launch.scale.rounds import Rounds, run_rounds
from launch.start.mpirun import Mpirun
from launch.tune.measurements import Added
from launch.tune.step_time import Shape, StepTime
from profiling.bench.measured_job import JobFailedError
from profiling.bench.rank_steps import slowest, slowest_held_back
from retinanet.exit_codes import INTERRUPTED

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
) -> list[Measured]:
    """Run a job for each shape in each round.

    Raises:
        JobFailedError: One did not end well; its ranks have said why.
        KeyboardInterrupt: Ctrl-C.
    """
    combinations = [
        Combination(ranks=one.ranks, threads=one.threads, batch_size=one.batch_size)
        for one in shapes
    ]
    study = Rounds(combinations, trained.rounds)
    job_of = partial(
        job_of_combination,
        config=trained.config,
        overrides=trained.overrides,
        warm_up=WARM_UP,
        steps=STEPS,
        scenes=scenes,
    )
    run_rounds(study, job_of, mpirun=mpirun, console=console)
    if study.code == INTERRUPTED:
        raise KeyboardInterrupt
    if study.code:
        raise JobFailedError(study.code)
    return study.measured


def step_time(measured: Measured) -> StepTime:
    """The median step of a combination, without exchange of gradients."""
    one = measured.combination
    seconds = [
        value
        for job in measured.jobs
        for value in (slowest_held_back(job) if one.ranks > 1 else slowest(job))
    ]
    shape = Shape(ranks=one.ranks, threads=one.threads, batch_size=one.batch_size)
    return StepTime(shape=shape, seconds=median(seconds))


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
