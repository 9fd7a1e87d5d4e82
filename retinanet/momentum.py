"""How much momentum an optimizer has of its own where compute groups add some by themselves.

Gradients that are applied late pull on in the direction of earlier steps, which is what momentum
does. With g groups of one speed this implicit momentum is 1 − 1/g (Mitliagkas et al. 2016,
"Asynchrony begets Momentum, with an Application to Deep Learning", arXiv 1605.09774, theorem 3).
Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 4) lowers the explicit one accordingly.
"""

from typing import Literal

BETA1 = 0.9
"""Adam's and LAMB's without groups, as MLPerf has it."""


def implicit_momentum(groups: int) -> float:
    """What so many groups add by not waiting for one another."""
    return 1 - 1 / groups


def explicit_momentum(groups: int, *, total: float = BETA1) -> float:
    """What is left for the optimizer's own; 0 where the groups bring more than `total`."""
    return max(0.0, round(total - implicit_momentum(groups), 6))


def beta1_of(told: float | Literal["auto"], *, groups: int) -> float:
    """What `training.beta1` comes to with so many groups."""
    return explicit_momentum(groups) if told == "auto" else told
