"""Ratios of paired runs, and how sure one may be of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, log
from statistics import median

NOTHING = 0.05
"""A ratio nearer to 1 than this is called no difference."""
ALIKE = 1.15
"""Two ratios within this factor are called about the same."""
HOLDS = 1.25
"""A second measurement within this factor of the first has the same rough size."""
WANTED_CONFIDENCE = 0.9


@dataclass(frozen=True)
class Interval:
    """A range in which the true median lies with some confidence."""

    low: float
    high: float
    confidence: float
    """From 0 to 1; 0 where there is one run alone."""


@dataclass(frozen=True)
class Ratio:
    """A median of ratios, round by round."""

    median: float
    interval: Interval
    rounds: int

    @property
    def is_clear(self) -> bool:
        """Whether it is a difference at all, and not one that chance could make."""
        return abs(self.median - 1) >= NOTHING and not (
            self.interval.low <= 1 <= self.interval.high
        )


def ratio_of(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Round by round, so that a disturbance of the machine meets both sides."""
    ratios = [one / other for one, other in zip(numerators, denominators, strict=True)]
    return Ratio(median(ratios), interval_of_median(ratios), len(ratios))


def interval_of_median(values: Sequence[float]) -> Interval:
    """The narrowest range between two of the values that holds the median with 90 % confidence.

    From the sign test, which assumes nothing of how values scatter: among n values the median lies
    between the k-th smallest and the k-th largest unless k - 1 or fewer lie on one side of it. With
    so few values that no range is that sure (4 or fewer), it is the smallest and the largest.
    """
    ordered = sorted(values)
    count = len(ordered)
    best = Interval(ordered[0], ordered[-1], confidence(count, 1))
    for place in range(2, (count + 1) // 2 + 1):
        if confidence(count, place) < WANTED_CONFIDENCE:
            break
        best = Interval(ordered[place - 1], ordered[count - place], confidence(count, place))
    return best


def confidence(count: int, place: int) -> float:
    """That the median lies between the place-th smallest and the place-th largest of so many."""
    outside = sum(comb(count, below) for below in range(place))
    return max(0.0, 1 - 2 * outside / 2**count)


def are_alike(one: float, other: float, *, factor: float = ALIKE) -> bool:
    """Whether two ratios are within a factor of each other."""
    return abs(log(one / other)) <= log(factor)


def still_holds(first: Ratio, second: Ratio) -> bool:
    """Whether a second measurement has the sign of the first, and its rough size.

    Where neither finds a difference there is no sign that could be another.
    """
    neither = not first.is_clear and not second.is_clear
    same_sign = neither or (first.median > 1) == (second.median > 1)
    return same_sign and are_alike(first.median, second.median, factor=HOLDS)
