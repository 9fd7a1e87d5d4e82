"""Measured steps of a rank, written by hand."""

from collections.abc import Sequence

from profiling.bench.job import RankSteps


def rank_steps(
    rank: int,
    seconds: Sequence[float],
    *,
    data: Sequence[float] = (),
    exchange: Sequence[float] = (),
    held_back: Sequence[float] = (),
    images: int = 2,
    notes: Sequence[str] = (),
) -> RankSteps:
    """Return a rank's steps; a part that is not given took no time."""
    zeros = [0.0] * len(seconds)
    return RankSteps(
        rank=rank,
        host="host",
        seconds=list(seconds),
        data_seconds=list(data) or zeros,
        forward_seconds=zeros,
        exchange_seconds=list(exchange) or zeros,
        held_back_seconds=list(held_back),
        images=images,
        way="shared memory",
        notes=list(notes),
    )
