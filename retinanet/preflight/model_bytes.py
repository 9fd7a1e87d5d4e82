"""How many bytes a model and its optimizer hold, counted on a model that has shapes and no memory.

It is built on torch's meta device, in some 70 ms.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from retinanet.config import ModelConfig, TrainingConfig
from retinanet.model import RetinaNet

FILLING = (Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_)


@dataclass(frozen=True, kw_only=True)
class ModelBytes:
    """Sizes of a model's parts. [bytes]"""

    state: int
    """All tensors of its `state_dict`: parameters, and the statistics of norms."""
    trained: int
    """The parameters that train; their gradients are as large."""
    backbone: int
    """The backbone's parameters."""
    trained_backbone: int
    """Those of them that belong to the backbone."""
    statistics: int
    """Running statistics of the norms that train, which every rank has for itself."""
    optimizer: int
    """What the optimizer keeps for each parameter that trains."""

    @property
    def checkpoint(self) -> int:
        """The tensors of a checkpoint."""
        return self.state + self.optimizer


def model_bytes(model: ModelConfig, training: TrainingConfig, *, num_classes: int) -> ModelBytes:
    """Count the model that a configuration describes."""
    with torch.device("meta"), _Unfilled():
        network = RetinaNet(
            num_classes=num_classes, norm=model.norm, trainable_layers=model.trainable_layers
        )
    network.train()
    trained = [one for one in network.parameters() if one.requires_grad]
    body = list(network.backbone.body.parameters())
    norms = (one for one in network.modules() if isinstance(one, nn.BatchNorm2d) and one.training)
    statistics = (one for norm in norms for one in (norm.running_mean, norm.running_var))
    return ModelBytes(
        state=total(network.state_dict().values()),
        trained=total(trained),
        backbone=total(body),
        trained_backbone=total(one for one in body if one.requires_grad),
        statistics=total(one for one in statistics if one is not None),
        optimizer=optimizer_bytes(training, trained),
    )


def optimizer_bytes(training: TrainingConfig, trained: Sequence[Tensor]) -> int:
    """What the optimizer keeps: two averages and a count for adam and lamb, a momentum for sgd."""
    if training.optimizer == "sgd":
        return total(trained) if training.momentum else 0
    count = torch.zeros((), device="meta").nbytes
    return 2 * total(trained) + count * len(trained)


def total(tensors: Iterable[Tensor]) -> int:
    """The bytes of all of them."""
    return sum(tensor.nbytes for tensor in tensors)


class _Unfilled(TorchFunctionMode):
    """Leaves new tensors as they are: without memory there is nothing to fill."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        of_init = getattr(function, "__module__", "") == "torch.nn.init"
        if args and (of_init or function in FILLING):
            return args[0]
        return function(*args, **(kwargs or {}))
