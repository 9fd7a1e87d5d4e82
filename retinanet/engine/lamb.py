"""LAMB: Adam with steps as long as a share of the weights that they change, layer by layer.

You et al. 2019, "Large Batch Optimization for Deep Learning", arXiv 1904.00962, algorithm 2.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retinanet.engine.native_step import (
    TensorUpdate,
    can_step,
    load_steps,
    native_step,
    next_update,
)


class Lamb(Optimizer):
    """The paper's algorithm 2 with bias correction; its scaling function is the identity.

    Tensors of one dimension (biases, a norm's scale and shift) have no weight decay and a trust
    ratio of 1, as in the authors' code: biases start at zero, and steps in proportion to nothing
    would leave them there. The ratio is 1 also where the norm of a weight or of its update is zero.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        fused: bool = True,
    ) -> None:
        """Keep the settings; nothing is computed or compiled.

        Args:
            parameters: The weights to update.
            lr: Length of a step, as a share of the norm of the weights.
            betas: What the averages of the gradient and of its square keep of their last value.
            eps: Added to the root of the second average.
            weight_decay: Decoupled: the share of a weight that is added to its update.
            fused: Update all tensors in one call of C++ (float32 on CPUs; others are left to plain
                PyTorch). False: plain PyTorch, tensor by tensor; this is the reference.
        """
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "fused": fused,
        }
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Raises:
            NativeLibraryError: `fused`, and the C++ cannot be compiled here.
        """
        assert closure is None, "LAMB needs the gradients only"
        for group in self.param_groups:
            updates = [
                next_update(
                    parameter,
                    self.state[parameter],
                    weight_decay=group["weight_decay"] if parameter.dim() > 1 else 0.0,
                    use_trust_ratio=parameter.dim() > 1,
                )
                for parameter in group["params"]
                if parameter.grad is not None
            ]
            settings = {
                "learning_rate": group["lr"],
                "betas": group["betas"],
                "eps": group["eps"],
            }
            fused = [one for one in updates if group["fused"] and can_step(one.weight)]
            if fused:
                native_step(load_steps().lamb_step, fused, **settings)
            for one in updates:
                if not (group["fused"] and can_step(one.weight)):
                    plain_step(one, **settings)


def plain_step(
    update: TensorUpdate, *, learning_rate: float, betas: tuple[float, float], eps: float
) -> None:
    """LAMB's step of one tensor by PyTorch's operators."""
    weight, gradient, step = update.weight, update.gradient, update.step
    beta1, beta2 = betas
    update.exp_avg.lerp_(gradient, 1 - beta1)
    update.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = (update.exp_avg_sq / (1 - beta2**step)).sqrt_().add_(eps)
    direction = (update.exp_avg / (1 - beta1**step)).div_(root)
    if update.weight_decay:
        direction.add_(weight, alpha=update.weight_decay)
    ratio = trust_ratio(weight, direction) if update.use_trust_ratio else 1.0
    weight.sub_(direction, alpha=learning_rate * ratio)


def trust_ratio(weight: Tensor, direction: Tensor) -> float:
    """Norm of the weight over the norm of its update; 1 where one of them is zero."""
    weight_norm, direction_norm = weight.norm().item(), direction.norm().item()
    return weight_norm / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0
