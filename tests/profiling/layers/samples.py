"""A small network: one layer sleeps, one overwrites its input, one runs twice."""

import time
from typing import Any

import torch
from torch import Tensor, nn

from profiling.layers.timing import TimedModel

NAP = 0.02
"""Seconds that the sleeping layer takes, each way."""


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        time.sleep(NAP)
        return values * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(NAP)
        return gradient * 2


class Sleeping(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        slept: Tensor = Sleep.apply(values)
        return slept


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
        self.first = nn.Linear(4, 4)
        self.sleeping = Sleeping()
        self.relu = nn.ReLU(inplace=True)
        self.shared = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.relu(self.first(self.frozen(values)))
        hidden = hidden + 1  # not a module
        hidden = self.shared(self.sleeping(self.relu(self.shared(hidden))))
        output: Tensor = hidden.cos()
        return output


def small_model() -> TimedModel:
    torch.manual_seed(0)
    network = Network()
    values = torch.randn(3, 4)
    return TimedModel(network, lambda: network(values), lambda outputs: outputs.sum(), None)
