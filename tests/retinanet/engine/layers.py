"""A small model for tests of optimizers and shared weights."""

import torch
from torch import Tensor, nn


class Layers(nn.Module):
    """Parameters of odd sizes in channels_last memory, one of many chunks, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3)
        self.first = nn.Conv2d(3, 17, 3)
        self.second = nn.Conv2d(17, 5, 1)
        self.large = nn.Linear(601, 211)
        self.stem.requires_grad_(False)
        self.to(memory_format=torch.channels_last)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def random_gradients(parameters: list[nn.Parameter], *, seed: int) -> list[Tensor]:
    """Return gradients of many scales, laid out as the parameters."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.empty_like(parameter).copy_(
            torch.randn(parameter.shape, generator=generator) * 10.0**-place
        )
        for place, parameter in enumerate(parameters)
    ]
