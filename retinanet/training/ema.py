"""The exponential moving average of a model's weights (`training.ema`): evaluated, saved, exported.

Weights of late steps wander around a minimum; their average is nearer to it than any of them. It
is taken of everything that a step changes: the weights that train, and the running statistics of
their norms. All ranks keep one, so that each evaluates its own part of the images.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from retinanet.training.train_state import trained_norms


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model that are averaged, under their names in the `state_dict`."""
    weights = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    return weights | trained_norms(model)


def decay_after(step: int, decay: float) -> float:
    """Return the decay of the update after `step` completed steps and one more.

    It rises from 0.1 to `decay`, as (1 + step) / (10 + step): the average of the first steps would
    otherwise be mostly the initial weights. TensorFlow's `ExponentialMovingAverage` has the same
    rule. A function of the step, so that a resumed run needs no state for it.
    """
    return min(decay, (1 + step) / (10 + step))


class WeightAverage:
    """The average of the weights of a model, whose tensors must stay the same objects."""

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        """Begin with the model's present weights."""
        self._decay = decay
        self._current = averaged_tensors(model)
        self.tensors: Mapping[str, Tensor] = {
            name: value.clone() for name, value in self._current.items()
        }
        """The averages, under the names of `averaged_tensors`."""
        self.norms: Mapping[str, Tensor] = {
            name: self.tensors[name] for name in trained_norms(model)
        }
        """The running statistics among them, which differ between ranks."""

    def restart(self) -> None:
        """Begin again with the model's present weights."""
        torch._foreach_copy_(list(self.tensors.values()), list(self._current.values()))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after an optimizer step, of which `step` were completed before."""
        average = get_ema_multi_avg_fn(decay_after(step, self._decay))
        average(list(self.tensors.values()), list(self._current.values()), step)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Put the averages into the model, and the weights back at the end, bit for bit."""
        current = list(self._current.values())
        with torch.no_grad():
            weights = [value.clone() for value in current]
            torch._foreach_copy_(current, list(self.tensors.values()))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(current, weights)
