"""Arithmetic of a training step's convolutions, counted from shapes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def convolution_flop(network: nn.Module, forward: Callable[[], object]) -> int:
    """Multiplications and additions in the convolutions of a forward and a backward pass.

    `forward` runs the network under gradients, best with tensors on the meta device, so that
    nothing is computed. Backward counts only what is needed: the gradient to the input where
    something before it trains, the gradient to the weights where they train. Padding is counted
    as if it were multiplied.
    """
    total = 0

    def count(convolution: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(convolution, nn.Conv2d)
        channels_in = convolution.in_channels // convolution.groups
        height, width = convolution.kernel_size
        passes = 1 + inputs[0].requires_grad + convolution.weight.requires_grad
        total += passes * 2 * output.numel() * channels_in * height * width

    hooks: list[Any] = [
        module.register_forward_hook(count)
        for module in network.modules()
        if isinstance(module, nn.Conv2d)
    ]
    with torch.enable_grad():
        forward()
    for hook in hooks:
        hook.remove()
    return total
