"""Which numbers of groups and momentum are probed, in which order.

Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 4.2, algorithm 1): as many groups as there
can be, with a grid of momentum. Where the best of it is none at all, not waiting brings more than
is wanted already: half as many groups, and again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from retinanet.momentum import BETA1, explicit_momentum

GRID = (0.0, 0.3, 0.6, BETA1)


@dataclass(frozen=True, order=True)
class Setting:
    """What a probe trains with."""

    groups: int
    beta1: float

    @property
    def name(self) -> str:
        """`groups2-beta0.3`, for files."""
        return f"groups{self.groups}-beta{self.beta1:g}"

    @property
    def words(self) -> str:
        """For a person."""
        groups = "1 group" if self.groups == 1 else f"{self.groups} groups"
        return f"{groups}, beta1 {self.beta1:g}"


SYNCHRONOUS = Setting(1, BETA1)
"""Plain training, which all others are held against."""


def settings_of(groups: int) -> list[Setting]:
    """The grid of a number of groups, with what the rule says of it (`retinanet.momentum`)."""
    return [Setting(groups, beta1) for beta1 in sorted({*GRID, explicit_momentum(groups)})]


def search(ranks: int, *, best_of: Callable[[Sequence[Setting]], Setting]) -> Iterator[Setting]:
    """The settings to probe, one after another.

    Args:
        ranks: As many groups there can be.
        best_of: Of settings that have been probed.
    """
    yield SYNCHRONOUS
    groups = ranks
    while groups > 1:
        settings = settings_of(groups)
        yield from settings
        if best_of(settings).beta1 > 0:
            return
        groups = max(one for one in range(1, groups) if ranks % one == 0 and one <= groups / 2)
