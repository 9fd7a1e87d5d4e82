"""What a scaling study has measured, and the numbers that are made of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from launch.scale.combinations import Combination
from profiling.bench.rank_steps import (
    RankSteps,
    exposed,
    slowest,
    slowest_held_back,
    waited_for_data,
)
from profiling.bench.run import Ratio

Job = Sequence[RankSteps]
"""What each rank of one job measured."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The jobs of one combination."""

    combination: Combination
    jobs: Sequence[Job]
    """One of each round, in order; at least one."""

    @property
    def step_seconds(self) -> float:
        """Median over the steps of all rounds, each as long as that of its slowest rank."""
        return median(seconds for job in self.jobs for seconds in slowest(job))

    @property
    def images_per_second(self) -> float:
        """Over all ranks."""
        return self.combination.images / self.step_seconds

    @property
    def data_share(self) -> float:
        """Of a step, what was waiting for data; median."""
        return share(self.jobs, waited_for_data)

    @property
    def exposed_share(self) -> float | None:
        """Of a step, what was waiting for other ranks' gradients; median. None for one rank."""
        return share(self.jobs, exposed) if self.combination.ranks > 1 else None

    @property
    def added_share(self) -> float | None:
        """Of a step, what the exchange of gradients makes it longer; median. None for one rank.

        Each step is held against the next one, which has no exchange: a while in which the machine
        is slower meets both.
        """
        pairs = [
            1 - without / step
            for job in self.jobs
            if self.combination.ranks > 1
            for step, without in zip(slowest(job), slowest_held_back(job), strict=True)
        ]
        return median(pairs) if pairs else None


def share(jobs: Sequence[Job], part: Callable[[Job], Sequence[float]]) -> float:
    """Median over all steps of a part's share in them."""
    return median(
        seconds / whole
        for job in jobs
        for seconds, whole in zip(part(job), slowest(job), strict=True)
    )


def smallest(measured: Sequence[Measured]) -> Measured:
    """That of the fewest ranks, and among these of the fewest threads: the 1.00 of the table."""
    return min(measured, key=lambda one: (one.combination.ranks, one.combination.threads))


def efficiency(one: Measured, measured: Sequence[Measured]) -> float | None:
    """Weak scaling: throughput over that of the fewest ranks with as many threads, times as many.

    1 is ideal. None where nothing with fewer ranks and as many threads was measured.
    """
    same = [other for other in measured if other.combination.threads == one.combination.threads]
    base = smallest(same)
    times = one.combination.ranks / base.combination.ranks
    return one.images_per_second / (times * base.images_per_second) if times > 1 else None


def times_the_throughput(one: Measured, other: Measured) -> Ratio:
    """Of all steps' medians; beside it the lowest and the highest of a round."""
    rounds = [
        Measured(combination=one.combination, jobs=[job]).images_per_second
        / Measured(combination=other.combination, jobs=[other_job]).images_per_second
        for job, other_job in zip(one.jobs, other.jobs, strict=False)  # one may lack a round
    ]
    return Ratio(one.images_per_second / other.images_per_second, min(rounds), max(rounds))
