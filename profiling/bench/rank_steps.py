"""What the ranks of one job measured of the same steps."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """One rank's counted steps."""

    rank: int
    host: str
    seconds: list[float]
    """Of each step, waiting included."""
    data_seconds: list[float]
    """Of these, waiting for data."""
    forward_seconds: list[float]
    """Of these, forward passes and losses."""
    exchange_seconds: list[float]
    """Of these, waiting for gradients after the last of its own; one rank alone has zeros."""
    held_back_seconds: list[float]
    """Of the steps between these, whose gradients stayed with their rank; empty without such."""
    images: int
    """In each step."""
    way: str
    """Which gradients take: `shared memory`, `gloo` or `ccl`; `none` for one rank alone."""
    notes: list[str]
    """What the rank has to say of its place."""


def slowest(ranks: Sequence[RankSteps]) -> list[float]:
    """Seconds of each step of a job: those of its slowest rank, as all start a step together."""
    return [max(of_step) for of_step in zip(*(one.seconds for one in ranks), strict=True)]


def slowest_held_back(ranks: Sequence[RankSteps]) -> list[float]:
    """The same for steps whose gradients stayed with their rank."""
    return [max(of_step) for of_step in zip(*(one.held_back_seconds for one in ranks), strict=True)]


def exposed(ranks: Sequence[RankSteps]) -> list[float]:
    """Seconds of each step in which the exchange of gradients was all that went on.

    They are those of the rank that was ready last: the others also waited for it.
    """
    return [min(of_step) for of_step in zip(*(one.exchange_seconds for one in ranks), strict=True)]


def waited_for_data(ranks: Sequence[RankSteps]) -> list[float]:
    """Seconds of each step, of the rank that waited longest."""
    return [max(of_step) for of_step in zip(*(one.data_seconds for one in ranks), strict=True)]
