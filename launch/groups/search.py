"""Which numbers of groups, momenta and learning rates are probed, in which order.

Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 4.2, algorithm 1): as many groups as there
can be, with a grid of momentum and learning rate. Where the best of it is no momentum at all, not
waiting brings more than is wanted already: half as many groups, and again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from retinanet.momentum import BETA1, explicit_momentum

BETAS = (0.0, 0.6, BETA1)
"""Beside what the rule says (`retinanet.momentum`)."""
RATES = (1.0, 0.3, 0.1, 0.03)
"""Shares of the configuration's learning rate: with late gradients a smaller one is stable."""


@dataclass(frozen=True, order=True)
class Setting:
    """What a probe trains with."""

    groups: int
    beta1: float
    rate: float = 1.0
    """Share of the configuration's learning rate."""

    @property
    def name(self) -> str:
        """`groups2-beta0.3-rate0.1`, for files."""
        return f"groups{self.groups}-beta{self.beta1:g}-rate{self.rate:g}"

    @property
    def words(self) -> str:
        """For a person."""
        groups = "1 group" if self.groups == 1 else f"{self.groups} groups"
        rate = "" if self.rate == 1 else f", learning rate × {self.rate:g}"
        return f"{groups}, beta1 {self.beta1:g}{rate}"


def for_whole(setting: Setting) -> Setting:
    """What a whole training takes where this probe was the best: the next larger learning rate.

    A short probe favours small ones, whose loss falls at once; larger ones pay off when they have
    fallen (Wu et al. 2018, "Understanding Short-Horizon Bias", arXiv 1803.02021).
    """
    larger = [rate for rate in RATES if rate > setting.rate]
    return replace(setting, rate=min(larger, default=setting.rate))


def settings_of(groups: int) -> list[Setting]:
    """The grid of a number of groups. One group is plain training, with its own momentum."""
    betas = {*BETAS, explicit_momentum(groups)} if groups > 1 else {BETA1}
    return [Setting(groups, beta1, rate) for beta1 in sorted(betas) for rate in RATES]


def search(ranks: int, *, best_of: Callable[[Sequence[Setting]], Setting]) -> Iterator[Setting]:
    """The settings to probe, one after another.

    Args:
        ranks: As many groups there can be.
        best_of: Of settings that have been probed.
    """
    yield from settings_of(1)
    groups = ranks
    while groups > 1:
        settings = settings_of(groups)
        yield from settings
        if best_of(settings).beta1 > 0:
            return
        groups = max(one for one in range(1, groups) if ranks % one == 0 and one <= groups / 2)
