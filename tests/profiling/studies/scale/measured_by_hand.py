"""Measurements of a scaling study, written down."""

from collections.abc import Sequence

from profiling.bench.job import RankSteps
from profiling.studies.scale_study import Combination, Measured


def rank_steps(
    rank: int,
    seconds: Sequence[float],
    *,
    data: Sequence[float] = (),
    exchange: Sequence[float] = (),
    held_back: Sequence[float] = (),
    notes: Sequence[str] = (),
) -> RankSteps:
    """A rank's steps; what is left out took no time, or was not measured."""
    nothing = [0.0] * len(seconds)
    return RankSteps(
        rank=rank,
        host="host",
        seconds=list(seconds),
        data_seconds=list(data) or nothing,
        forward_seconds=nothing,
        exchange_seconds=list(exchange) or nothing,
        held_back_seconds=list(held_back),
        images=2,
        way="shared memory",
        notes=list(notes),
    )


def measured(
    ranks: int, threads: int, *step_seconds: float, batch_size: int = 2, without: float = 1.0
) -> Measured:
    """A combination with one job for each of the seconds, in which every step took so long.

    `without`: what a step without exchange took, as a share of one with it.
    """
    jobs = [
        [
            rank_steps(
                rank,
                [seconds, seconds],
                exchange=[0.01 * seconds] * 2,
                held_back=[without * seconds] * 2 if ranks > 1 else (),
            )
            for rank in range(ranks)
        ]
        for seconds in step_seconds
    ]
    combination = Combination(ranks=ranks, threads=threads, batch_size=batch_size)
    return Measured(combination=combination, jobs=jobs)
