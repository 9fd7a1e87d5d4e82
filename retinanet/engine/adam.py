"""Adam in one pass over memory."""

from collections.abc import Iterable

import torch
from torch import nn

from retinanet.engine.native_step import can_step, load_steps, native_step, next_update


class OnePassAdam(torch.optim.Adam):
    """torch's Adam, with the step of all tensors in one call of C++; its state is torch's.

    Where a parameter is not float32 in a piece of CPU memory, the step is torch's `fused=True`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        """Keep the settings. `weight_decay`: the share of a weight that joins its gradient."""
        super().__init__(parameters, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Raises:
            NativeLibraryError: The C++ cannot be compiled here.
        """
        assert closure is None, "Adam needs the gradients only"
        if not all(can_step(one) for group in self.param_groups for one in group["params"]):
            super().step()
            return
        for group in self.param_groups:
            updates = [
                next_update(parameter, self.state[parameter], weight_decay=group["weight_decay"])
                for parameter in group["params"]
                if parameter.grad is not None
            ]
            native_step(
                load_steps().adam_step,
                updates,
                learning_rate=group["lr"],
                betas=group["betas"],
                eps=group["eps"],
            )
