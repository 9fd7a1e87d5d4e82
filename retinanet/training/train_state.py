"""What a resumed run continues from: its progress, and the states that each rank has of its own.

Random generators and the running statistics of norms that train differ between ranks. Everything
else is equal on all of them.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from retinanet.training.schedule import Position

MOST_DIGITS = 9
"""Of a rank's number in a checkpoint."""


@dataclass(kw_only=True)
class TrainState:
    """How far a run has come. Equal on all ranks; only the trainer writes it."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done."""
    images: int = 0
    """Images of the running epoch's order that are done, by all ranks together."""
    current_map: float | None = None
    """mAP of the weights as they are; None where they have not been evaluated."""
    best_map: float | None = None
    """Highest mAP of an evaluation so far."""

    def advance(self, position: Position) -> None:
        """Move to a later position, whose weights have not been evaluated."""
        self.step, self.epoch, self.images = position.step, position.epoch, position.images
        self.current_map = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, under its names; see `TrainingPosition`."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "images": self.images,
            "map_here": self.current_map,
            "best_map": self.best_map,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what a checkpoint kept."""
        self.advance(Position(state["step"], state["epoch"], state["images"]))
        self.current_map, self.best_map = state["map_here"], state["best_map"]


@dataclass(frozen=True)
class RankState:
    """What one rank has of its own."""

    random: dict[str, Any]
    """See `random_states`."""
    statistics: dict[str, Tensor]
    """Means and variances under the model's names, unless they are the checkpoint's model's."""


def trained_norms(model: nn.Module) -> dict[str, Tensor]:
    """Return running statistics of norms that train, under their names in the `state_dict`."""
    return {
        f"{name}.{statistic}": getattr(module, statistic)
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for statistic in ("running_mean", "running_var")
    }


def rank_state_dict(model: nn.Module, *, with_statistics: bool) -> RankState:
    """Return a copy of what this rank has of its own."""
    norms = trained_norms(model) if with_statistics else {}
    return RankState(random_states(), {name: values.clone() for name, values in norms.items()})


def load_rank_state_dict(state: RankState, model: nn.Module) -> None:
    """Restore what a rank has of its own.

    Raises:
        ValueError: It is not what `rank_state_dict` gives for this model.
    """
    restore_random_states(state.random)
    norms = trained_norms(model)
    with torch.no_grad():
        for name, values in state.statistics.items():
            if name not in norms or norms[name].shape != values.shape:
                raise ValueError(f"{name}: the model has no such norm")
            norms[name].copy_(values)


def number_statistics(states: Sequence[RankState]) -> dict[str, Tensor]:
    """Return all ranks' statistics for one file: `1/backbone.body.bn1.running_mean`."""
    return {
        f"{rank}/{name}": values
        for rank, state in enumerate(states)
        for name, values in state.statistics.items()
    }


def rank_states(random: Sequence[dict[str, Any]], tensors: Mapping[str, Tensor]) -> list[RankState]:
    """Return each rank's state, from random states and a file's tensors; see above."""
    states = [RankState(generators, {}) for generators in random]
    for key, values in tensors.items():
        rank, _, name = key.partition("/")
        if rank.isdecimal() and len(rank) < MOST_DIGITS and int(rank) < len(states):
            states[int(rank)].statistics[name] = values
    return states


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's generators, as JSON takes them."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, np.array(words, dtype=np.uint32).tobytes().hex(), gauss],
        "numpy": [str(name), np.asarray(keys).tobytes().hex(), position, has_gauss, cached],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore the generators, so that they draw what they would have drawn.

    Raises:
        ValueError: The states are not what `random_states` gives; the generators are unchanged.
    """
    before = random_states()
    try:
        _restore(states)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        _restore(before)  # a generator may have accepted a state that it cannot draw from
        raise ValueError(f"random states are damaged: {error!r}") from error


def _restore(states: Mapping[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, tuple(_numbers(words, np.uint32).tolist()), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, _numbers(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.from_numpy(_numbers(states["torch"], np.uint8)))


def _numbers(text: str, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """Return the numbers whose memory a hexadecimal text describes."""
    return np.frombuffer(bytearray.fromhex(text), dtype=kind)
