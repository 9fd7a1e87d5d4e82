"""Measure this host: steps by ranks, threads and local batch, evaluation, all-reduces."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from launch.scale.combination_job import job_of_combination
from launch.scale.combinations import Combination
from launch.scale.numbers import Job, Measured
from launch.scale.rounds import Rounds, run_rounds
from launch.start.mpirun import Mpirun
from launch.tune.measurements import Added
from launch.tune.step_time import Shape, StepTime
from launch.tune.unfinished import JobsOfShape
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
