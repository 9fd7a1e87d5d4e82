"""Jobs of several shapes, one after another in rounds, and the numbers derived from them.

Rounds go forwards and backwards, so that what changes steadily, as a machine that warms up, affects
all shapes alike. The scaling study compares shapes; the planner fits the model of a step to them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Annotated

from pydantic import Field
from rich.console import Console

from common.console import print_line, progress
from common.wording import counted
from launch.mpirun import Hosts, Mpirun
from profiling.bench.job import MeasuredJob, RankSteps, measure_ranks, per_step

Count = Annotated[int, Field(gt=0, le=10**6)]  # Checked where a plan is read


@dataclass(frozen=True, kw_only=True, order=True)
class Shape:
    """A number of ranks; threads and images of a step are those of each rank."""

    ranks: Count
    threads: Count
    batch_size: Count

    @property
    def name(self) -> str:
        """The name, such as `2 ranks × 1 thread`."""
        threads = counted(self.threads, "thread")
        return f"{counted(self.ranks, 'rank')} × {threads}"

    @property
    def short_name(self) -> str:
        """The ranks and threads, such as `2 × 1`."""
        return f"{self.ranks} × {self.threads}"

    @property
    def images(self) -> int:
        """Images of a step, over all ranks."""
        return self.ranks * self.batch_size

    @property
    def settings(self) -> tuple[str, ...]:
        """Threads and images as `section.field=value`."""
        return (f"launch.threads={self.threads}", f"training.batch_size={self.batch_size}")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The jobs of a shape, and the numbers derived from them."""

    shape: Shape
    jobs: tuple[tuple[RankSteps, ...], ...]  # One of each round, in order; at least one

    @property
    def step_seconds(self) -> float:
        """Median over the steps of all rounds, each as long as that of its slowest rank."""
        return median(seconds for job in self.jobs for seconds in per_step(job, "seconds"))

    @property
    def seconds_without_exchange(self) -> float:
        """The same of the steps without exchange of gradients."""
        # One rank exchanges nothing, and its job has no steps without exchange.
        part = "held_back_seconds" if self.shape.ranks > 1 else "seconds"
        return median(seconds for job in self.jobs for seconds in per_step(job, part))

    @property
    def images_per_second(self) -> float:
        """Throughput of all ranks."""
        return self.shape.images / self.step_seconds

    @property
    def data_share(self) -> float:
        """Median share of a step spent waiting for data, by the rank that waited longest."""
        return median(self._shares("data_seconds"))

    @property
    def exposed_share(self) -> float | None:
        """Median share of a step in which only gradients were exchanged. None for one rank.

        It is that of the rank that was ready last: the others also waited for it.
        """
        return median(self._shares("exchange_seconds", min)) if self.shape.ranks > 1 else None

    @property
    def added_share(self) -> float | None:
        """Median share of a step that the exchange of gradients adds. None for one rank.

        Each step is compared with the next one, which has no exchange: a while in which the machine
        is slower affects both.
        """
        if self.shape.ranks == 1:
            return None
        return median(1 - without for without in self._shares("held_back_seconds"))

    def _shares(
        self, part: str, choose: Callable[[Sequence[float]], float] = max
    ) -> Iterator[float]:
        """Yield a part's share in each step."""
        for job in self.jobs:
            steps = per_step(job, "seconds")
            for seconds, whole in zip(per_step(job, part, choose), steps, strict=True):
                yield seconds / whole


@dataclass
class Rounds:
    """The jobs of a study: those to run, and what has been measured so far."""

    shapes: Sequence[Shape]  # In the order of the first round
    rounds: int
    title: str
    jobs: dict[Shape, tuple[tuple[RankSteps, ...], ...]] = field(default_factory=dict)
    hosts: Mapping[int, Hosts] = field(default_factory=dict)
    """The hosts by number of ranks; none: this one."""
    running: str = ""  # Names the job that runs, or was the last to

    @property
    def order(self) -> list[tuple[int, Shape]]:
        """All jobs with their rounds, from 1; the order alternates from round to round."""
        return [
            (number, shape)
            for number in range(1, self.rounds + 1)
            for shape in self.shapes[:: 1 if number % 2 else -1]
        ]

    @property
    def done(self) -> int:
        """The number of jobs that have run."""
        return sum(map(len, self.jobs.values()))

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The shapes that have run at least once."""
        return tuple(
            Measured(shape=shape, jobs=self.jobs[shape])
            for shape in self.shapes
            if shape in self.jobs
        )


def run_rounds(
    rounds: Rounds,
    template: MeasuredJob,
    *,
    mpirun: Mpirun,
    console: Console,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Run the remaining jobs, and record their measurements.

    Ranks, threads and images of the template are each shape's. `keep` is called after each job.

    Raises:
        JobFailedError: A job failed; its ranks have printed the reason.
        KeyboardInterrupt: Ctrl-C.
    """
    jobs = {
        shape: replace(
            template,
            ranks=shape.ranks,
            hosts=rounds.hosts.get(shape.ranks, ()),
            overrides=(*template.overrides, *shape.settings),
        )
        for shape in rounds.shapes
    }
    # Jobs of a shape run in order of rounds: their number shows which are missing.
    missing = [job for job in rounds.order if len(rounds.jobs.get(job[1], ())) < job[0]]
    total = sum(jobs[shape].all_steps for _, shape in rounds.order)
    before = total - sum(jobs[shape].all_steps for _, shape in missing)
    with progress(console, rounds.title, total=total, start=before) as advance:
        for number, shape in missing:
            rounds.running = f"{shape.name}, round {number} of {rounds.rounds}"
            advance(before, rounds.running)
            ranks = measure_ranks(
                jobs[shape],
                mpirun=mpirun,
                advance=lambda step: advance(before + step, rounds.running),  # noqa: B023, at once
                print_line=partial(print_line, console),
            )
            rounds.jobs[shape] = (*rounds.jobs.get(shape, ()), tuple(ranks))
            keep()
            before += jobs[shape].all_steps
