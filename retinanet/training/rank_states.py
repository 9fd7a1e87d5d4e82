"""What each rank has of its own: random states, and running statistics of norms that train.

Everything else is equal on all ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from retinanet.training.random_states import random_states, restore_random_states

MOST_DIGITS = 9


@dataclass(frozen=True)
class RankState:
    """Of one rank."""

    random: dict[str, Any]
    """See `random_states`."""
    statistics: dict[str, Tensor]
    """Means and variances under the model's names, unless they are the checkpoint's model's."""


def trained_norms(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics of norms that train, under their names in the `state_dict`."""
    return {
        f"{name}.{statistic}": getattr(one, statistic)
        for name, one in model.named_modules()
        if isinstance(one, nn.BatchNorm2d)
        for statistic in ("running_mean", "running_var")
    }


def own_state(model: nn.Module, *, with_statistics: bool) -> RankState:
    """A copy of this rank's."""
    norms = trained_norms(model) if with_statistics else {}
    return RankState(random_states(), {name: one.clone() for name, one in norms.items()})


def restore_own_state(state: RankState, model: nn.Module) -> None:
    """Put a rank's state back.

    Raises:
        ValueError: It is not what `own_state` gives for this model.
    """
    restore_random_states(state.random)
    norms = trained_norms(model)
    with torch.no_grad():
        for name, values in state.statistics.items():
            if name not in norms or norms[name].shape != values.shape:
                raise ValueError(f"{name}: the model has no such norm")
            norms[name].copy_(values)


def numbered(states: Sequence[RankState]) -> dict[str, Tensor]:
    """Statistics of all ranks for one file: `1/backbone.body.bn1.running_mean`."""
    return {
        f"{rank}/{name}": values
        for rank, state in enumerate(states)
        for name, values in state.statistics.items()
    }


def rank_states(random: Sequence[dict[str, Any]], tensors: Mapping[str, Tensor]) -> list[RankState]:
    """The inverse: of each rank, from its random states and the file's tensors."""
    states = [RankState(one, {}) for one in random]
    for key, values in tensors.items():
        rank, _, name = key.partition("/")
        if rank.isdecimal() and len(rank) < MOST_DIGITS and int(rank) < len(states):
            states[int(rank)].statistics[name] = values
    return states
