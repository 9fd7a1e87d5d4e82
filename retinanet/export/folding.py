"""Constant batch norms as a part of the convolutions before them: the same numbers, less work."""

import copy

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck

from retinanet.engine.network import constant_line
from retinanet.model import RetinaNet


@torch.no_grad()
def fold_norms(model: RetinaNet) -> RetinaNet:
    """A copy of a model without norms, frozen or trained: its convolutions do what they did."""
    folded = copy.deepcopy(model).eval()
    body = folded.backbone.body
    fold(body, "conv1", "bn1")
    for block in body.modules():
        if isinstance(block, Bottleneck):
            for number in (1, 2, 3):
                fold(block, f"conv{number}", f"bn{number}")
            if block.downsample is not None:
                fold(block.downsample, "0", "1")
    return folded


def fold(parent: nn.Module, convolution: str, norm: str) -> None:
    """Put a norm of constant statistics into the convolution before it, and nothing in its place.

    `convolution` and `norm` are the names of two modules of `parent`.
    """
    module = parent.get_submodule(convolution)
    assert isinstance(module, nn.Conv2d) and module.bias is None
    scale, shift = constant_line(parent.get_submodule(norm))
    module.weight.mul_(scale.view(-1, 1, 1, 1))
    module.bias = nn.Parameter(shift.clone())
    setattr(parent, norm, nn.Identity())
