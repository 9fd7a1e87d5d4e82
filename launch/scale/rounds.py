"""The jobs of a scaling study, one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console

from launch.scale.combinations import Combination
from launch.scale.numbers import Job, Measured
from launch.start.mpirun import Mpirun
from profiling.bench.measured_job import JobFailedError, MeasuredJob, measure_ranks
from retinanet.exit_codes import FINISHED, INTERRUPTED, described
from retinanet.progress import Advance, progress


@dataclass
class Rounds:
    """What has been measured so far."""

    combinations: Sequence[Combination]
    """That fit, in the order of the first round."""
    rounds: int
    jobs: dict[Combination, list[Job]] = field(default_factory=dict)
    code: int = FINISHED
    """Another one where an interruption, or a job that failed, has ended the study."""
    ended_by: str = ""
    """What it was, in words."""
    title: str = "scaling study, steps"
    """Of the progress that is shown."""
    other_cores: float = 0.0
    """Cores of this host that other work kept busy meanwhile, where all ranks run here."""

    @property
    def order(self) -> list[tuple[int, Combination]]:
        """Every job with its round, from 1: forwards, then backwards, and so on.

        What changes steadily, as a machine that warms up, so meets all combinations alike.
        """
        return [
            (number, combination)
            for number in range(1, self.rounds + 1)
            for combination in self.combinations[:: 1 if number % 2 else -1]
        ]

    @property
    def missing(self) -> list[tuple[int, Combination]]:
        """Those that have not run yet."""
        return [(number, one) for number, one in self.order if len(self.jobs.get(one, ())) < number]

    @property
    def done(self) -> int:
        """Jobs."""
        return sum(map(len, self.jobs.values()))

    @property
    def measured(self) -> list[Measured]:
        """The combinations that have run at least once."""
        return [
            Measured(combination=one, jobs=self.jobs[one])
            for one in self.combinations
            if one in self.jobs
        ]


def run_rounds(
    rounds: Rounds,
    job_of: Callable[[Combination], MeasuredJob],
    *,
    mpirun: Mpirun,
    console: Console,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Run the jobs that have not run, and note what they measured.

    A job that fails, and Ctrl-C, end the study.

    Args:
        rounds: Which there are; gets the measurements, and how the study ended.
        job_of: The job of a combination.
        mpirun: Starts them.
        console: Where progress is shown.
        keep: Called after each job, with its measurements noted.
    """
    total = sum(job_of(one).all_steps for _, one in rounds.order)
    missing = rounds.missing
    before = total - sum(job_of(one).all_steps for _, one in missing)
    name = ""
    try:
        with progress(console, rounds.title, total=total, start=before) as advance:
            for number, one in missing:
                name = f"{one.name}, round {number} of {rounds.rounds}"
                job = job_of(one)
                advance(before, name)
                ranks = measure_ranks(
                    job,
                    mpirun=mpirun,
                    advance=partial(add, advance, before, name),
                    say=lambda line: console.print(line, markup=False, soft_wrap=True),
                )
                rounds.jobs.setdefault(one, []).append(ranks)
                keep()
                before += job.all_steps
    except JobFailedError as error:
        rounds.code, rounds.ended_by = error.code, f"{name}: {error}"
    except KeyboardInterrupt as error:
        rounds.code, rounds.ended_by = INTERRUPTED, described(error) or ""


def add(advance: Advance, before: int, note: str, step: int) -> None:
    """Show a job's step among the steps of all jobs."""
    advance(before + step, note)
