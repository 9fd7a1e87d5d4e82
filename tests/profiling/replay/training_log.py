"""Write oneDNN's log of a small network's training: `python training_log.py LOG`.

Convolutions of every direction in float32 and BF16 (strided, grouped, dilated, channels last and
row by row), and a linear layer.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.backends import mkldnn

from common.console import redirected
from common.streams import OUTPUT


def step(network: nn.Module, images: torch.Tensor, *, bf16: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = network(images).square().mean()
    loss.backward()


def main() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(16, 32, 1),
        nn.Conv2d(32, 32, 3, padding=1, groups=8),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 64),
    )
    images = torch.randn(4, 3, 24, 32)
    with (
        Path(sys.argv[1]).open("wb", buffering=0) as file,
        redirected(OUTPUT, file.fileno()),
        mkldnn.verbose(mkldnn.VERBOSE_ON),
    ):
        step(network, images, bf16=False)
        for weight in network.parameters():
            if weight.dim() == 4:
                weight.data = weight.contiguous(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
        for bf16 in (False, True):
            step(network, images, bf16=bf16)


if __name__ == "__main__":
    main()
