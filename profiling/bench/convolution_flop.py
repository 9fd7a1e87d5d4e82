"""Arithmetic of a training step's convolutions and fully connected layers, from shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Flop:
    """Multiplications and additions of one layer in all of its calls."""

    forward: int = 0
    backward: int = 0


def convolution_flop(network: nn.Module, forward: Callable[[], object]) -> int:
    """Those in the convolutions of a forward and a backward pass; see `flop_by_layer`."""
    convolutions = {name for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d)}
    found = flop_by_layer(network, forward)
    return sum(flop.forward + flop.backward for name, flop in found.items() if name in convolutions)


def flop_by_layer(network: nn.Module, forward: Callable[[], object]) -> dict[str, Flop]:
    """The arithmetic of each convolution and fully connected layer that runs, by name.

    `forward` runs the network under gradients, best with tensors on the meta device, so that
    nothing is computed. Backward counts only what is needed: the gradient to the input where
    something before it trains, the gradient to the weights where they train. Padding is counted
    as if it were multiplied.
    """
    found: dict[str, Flop] = {}

    def count(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        flop = found.setdefault(name, Flop())
        once = 2 * output.numel() * layer.weight[0].numel()  # weights of one output channel
        flop.forward += once
        flop.backward += once * (inputs[0].requires_grad + layer.weight.requires_grad)

    hooks: list[Any] = [
        module.register_forward_hook(partial(count, name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.enable_grad():
        forward()
    for hook in hooks:
        hook.remove()
    return found
