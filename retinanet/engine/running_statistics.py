"""The running statistics of norms that train: a forward pass changes them, a step may not count."""

import torch
from torch import Tensor, nn


class RunningStatistics:
    """Those of one model, kept before a step; a few hundred KB."""

    def __init__(self, model: nn.Module) -> None:
        """Find the norms whose statistics move in the mode that the model is in."""
        self._own: list[Tensor] = [
            statistic
            for module in model.modules()
            if isinstance(module, nn.BatchNorm2d) and module.training
            for statistic in module.buffers(recurse=False)
        ]
        self._kept = [torch.empty_like(one) for one in self._own]

    def keep(self) -> None:
        """Remember them as they are."""
        if self._own:
            torch._foreach_copy_(self._kept, self._own)

    def put_back(self) -> None:
        """Make them what they were."""
        if self._own:
            torch._foreach_copy_(self._own, self._kept)
