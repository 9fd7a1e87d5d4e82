"""What compute groups change in a forecast: smaller batches, no common waiting, a busy first rank.

Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 3): groups take steps of their own batch,
and each step ends with an exchange with the one that has the weights, who serves one at a time.
"""

from dataclasses import dataclass

from launch.tune.network import Network


@dataclass(frozen=True, kw_only=True)
class WithGroups:
    """Groups that a user allows, and what they cost."""

    most: int = 1
    """Compute groups, each of whole hosts."""
    epochs: float = 1.0
    """Times the epochs that plain training needs at a group's batch; see `launch groups`."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """Of the common weights, once for each step of a group."""

    weight_bytes: int
    """That a group gives and gets."""
    seconds: float
    """Of the optimizer's step by one thread; the weights are held as long."""
    network: Network

    def added_seconds(self) -> float:
        """To a group's step: gradients there, the optimizer's step, weights back."""
        travel = self.network.latency + self.weight_bytes / self.network.bandwidth
        return 2 * travel + self.seconds

    def least_seconds(self, groups: int) -> float:
        """Of a group's step, below which rank 0 could not serve so many."""
        travel = self.weight_bytes / self.network.bandwidth
        return groups * max(travel, self.seconds)
