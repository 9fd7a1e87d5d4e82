"""The engines behind one interface: what runs a model's arithmetic and updates its weights."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from retinanet.engine.ipex_engine import prepare_with_ipex, require_ipex
from retinanet.engine.network import FoldedForward
from retinanet.engine.precision import autocast
from retinanet.model import HeadOutputs, RetinaNet

Forward = Callable[[Tensor], HeadOutputs]
"""Normalized images [N, 3, H, W] to a network's outputs, in the precision it was made for."""

FASTEST = "torch"
"""What `auto` means, by measurement (docs/experiments.md), whatever else is installed."""


@dataclass(frozen=True)
class PreparedTraining:
    """A model and its optimizer as an engine has arranged them: use these instead."""

    model: RetinaNet
    """Holds weights, anchors, the mode. `state_dict()` is plain: float32, torchvision's names."""
    optimizer: Optimizer
    forward: Forward
    """For training and evaluation, by the model's mode."""


def chosen_engine(name: str) -> str:
    """The engine that `auto`, `torch` or `ipex` means here: `torch` or `ipex`.

    Raises:
        InputError: IPEX is asked for and not installed, or made for another torch.
    """
    if name == "ipex":
        require_ipex()
    return FASTEST if name == "auto" else name


def prepare_training(
    model: RetinaNet,
    optimizer: Optimizer,
    *,
    engine: str,
    precision: str,
    convolutions: str = "auto",
) -> PreparedTraining:
    """Arrange a model and its optimizer for training; weights and optimizer state are kept.

    A checkpoint is put into the originals before this: afterwards an engine may hold weights in
    pieces. `engine`: "torch" or "ipex", see `chosen_engine`. `precision`: "bf16" or "float32".
    `convolutions`: of the torch engine, see `choose_winograd`.

    Raises:
        InputError: IPEX or Winograd's convolutions are asked for and do not work here.
    """
    if engine == "torch":
        forward = torch_forward(model, precision=precision, convolutions=convolutions)
        return PreparedTraining(model, optimizer, forward)
    assert engine == "ipex", engine
    model, optimizer = prepare_with_ipex(model, optimizer, precision=precision)
    return PreparedTraining(model, optimizer, autocast_forward(model, precision=precision))


def torch_forward(model: RetinaNet, *, precision: str, convolutions: str = "auto") -> Forward:
    """The forward pass of the torch engine, for training and evaluation."""
    return FoldedForward(model, precision=precision, convolutions=convolutions)


def autocast_forward(model: RetinaNet, *, precision: str) -> Forward:
    """The model's own forward pass under autocast."""

    def forward(images: Tensor) -> HeadOutputs:
        with autocast(precision):
            outputs: HeadOutputs = model(images)
        return outputs

    return forward
