"""Sample measurements of a scaling study."""

from profiling.studies.rounds import Measured, Shape
from tests.support.rank_steps import rank_steps


def measured(
    ranks: int, threads: int, *step_seconds: float, batch_size: int = 2, without: float = 1.0
) -> Measured:
    """Return a shape with a job for each of `step_seconds`.

    `without`: time of a step without exchange, as a share of one with it.
    """
    jobs = tuple(
        tuple(
            rank_steps(
                rank,
                [seconds, seconds],
                exchange=[0.01 * seconds] * 2,
                held_back=[without * seconds] * 2 if ranks > 1 else (),
            )
            for rank in range(ranks)
        )
        for seconds in step_seconds
    )
    shape = Shape(ranks=ranks, threads=threads, batch_size=batch_size)
    return Measured(shape=shape, jobs=jobs)
