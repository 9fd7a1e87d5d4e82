"""A number that is known only within a range."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one quantity, all in its unit."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> "Estimate":
        """So many times as much; the factor is not negative."""
        return Estimate(low=factor * self.low, middle=factor * self.middle, high=factor * self.high)

    def widened(self, share: float) -> "Estimate":
        """What it may be where it is also wrong by a share, to either side."""
        low, high = self.low * (1 - share), self.high * (1 + share)
        return Estimate(low=low, middle=self.middle, high=high)
