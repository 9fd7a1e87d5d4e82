"""The optimizer, in the form that is fastest on CPUs.

TODO-DOC Adam in one pass over memory.

TODO-DOC LAMB: Adam with steps as long as a share of the weights that they change, layer by layer.

You et al. 2019, "Large Batch Optimization for Deep Learning", arXiv 1904.00962, algorithm 2.

TODO-DOC An optimizer's step over all its tensors in one call of C++ (csrc/optimizers.cpp).

TODO-DOC Where a tensor's values lie in memory.

TODO-DOC The norm of all gradients of a step, and their clipping to a longest one.
"""

import ctypes
import functools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import SGD, Adam, Optimizer

from common.native import NativeLibraryError, load_library
from retinanet.config_types import DEFAULT_BETA1
from retinanet.engine.kernel_calls import own_kernel

BETA2 = 0.999


def make_optimizer(
    model: nn.Module,
    *,
    name: str,
    learning_rate: float,
    momentum: float = 0.0,
    beta1: float = DEFAULT_BETA1,
    weight_decay: float = 0.0,
    fused: bool = True,
) -> Optimizer:
    """An optimizer over the parameters that train.

    Args:
        model: Its parameters keep their memory layout; the optimizer's state takes it over.
        name: `adam`, `sgd` or `lamb`. Adam's and LAMB's second beta is 0.999.
        learning_rate: Of the first step; the training loop sets each step's own.
        momentum: SGD's.
        beta1: Adam's and LAMB's first beta.
        weight_decay: For adam and sgd it joins the gradient (L2), as torch has it; for lamb it
            joins the update (decoupled), and biases and norms have none.
        fused: Few passes over memory: C++ of our own for adam and lamb, torch's for sgd. Without a
            C++ compiler it is torch's for adam and plain PyTorch for lamb, which is said once on
            stderr. False: plain PyTorch, tensor by tensor; the same numbers up to rounding.
    """
    assert name in ("adam", "sgd", "lamb"), name
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    form: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    if name == "sgd":
        return SGD(
            trainable, lr=learning_rate, momentum=momentum, weight_decay=weight_decay, **form
        )
    compiled = fused and native_steps_work()
    settings: dict[str, Any] = {
        "lr": learning_rate,
        "betas": (beta1, BETA2),
        "weight_decay": weight_decay,
    }
    if name == "lamb":
        return Lamb(trainable, fused=compiled, **settings)
    return OnePassAdam(trainable, **settings) if compiled else Adam(trainable, **settings, **form)


@functools.cache
def native_steps_work() -> bool:
    """Whether the C++ steps can be had; the first call says so on stderr if not."""
    try:
        load_steps()
    except NativeLibraryError as error:
        reason = str(error).splitlines()[0]
        print(
            f"optimizer: PyTorch's own step instead of the compiled one: {reason}", file=sys.stderr
        )
        return False
    return True


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


@dataclass(frozen=True, kw_only=True)
class TensorUpdate:
    """A parameter that has a gradient, and what its next step needs; all of one memory layout."""

    weight: Tensor
    gradient: Tensor
    exp_avg: Tensor
    """Running average of the gradient, of the steps before this one."""
    exp_avg_sq: Tensor
    """Running average of its square."""
    step: int
    """This step's number, from 1."""
    weight_decay: float
    use_trust_ratio: bool
    """Whether LAMB scales the step by the weight's norm; Adam does not look at it."""


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


SOURCE = Path(__file__).parent / "csrc" / "optimizers.cpp"


class TensorRecord(ctypes.Structure):
    """`TensorUpdate` as optimizers.cpp has it."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("exp_avg", ctypes.c_void_p),
        ("exp_avg_sq", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("correction1", ctypes.c_float),
        ("correction2", ctypes.c_float),
        ("weight_decay", ctypes.c_float),
        ("use_trust_ratio", ctypes.c_int32),
    )


class SettingsRecord(ctypes.Structure):
    """What all tensors share, as optimizers.cpp has it."""

    _fields_ = (
        ("learning_rate", ctypes.c_float),
        ("beta1", ctypes.c_float),
        ("beta2", ctypes.c_float),
        ("eps", ctypes.c_float),
    )


def load_steps(*, instruction_set: str | None = None) -> ctypes.CDLL:
    """The compiled `adam_step` and `lamb_step`; compiles them the first time.

    Raises:
        NativeLibraryError: They cannot be compiled or loaded here.
    """
    return load_library(SOURCE, instruction_set=instruction_set)


def next_update(
    parameter: Tensor,
    state: dict[str, Any],
    *,
    weight_decay: float,
    use_trust_ratio: bool = False,
) -> TensorUpdate:
    """Count a step in the state of a parameter that has a gradient.

    State is made the first time, under the names of torch's Adam.
    """
    assert parameter.grad is not None
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    state["step"] += 1
    for slot in ("exp_avg", "exp_avg_sq"):
        state[slot] = laid_out_as(parameter, state[slot])
    return TensorUpdate(
        weight=parameter,
        gradient=laid_out_as(parameter, parameter.grad),
        exp_avg=state["exp_avg"],
        exp_avg_sq=state["exp_avg_sq"],
        step=int(state["step"]),
        weight_decay=weight_decay,
        use_trust_ratio=use_trust_ratio,
    )


def can_step(parameter: Tensor) -> bool:
    """Whether the C++ takes a parameter: float32 values that fill a piece of memory."""
    return parameter.dtype == torch.float32 and parameter.is_cpu and is_one_block(parameter)


def native_step(
    function: Any,
    updates: Sequence[TensorUpdate],
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Take the steps, on as many threads as torch has.

    Args:
        function: `adam_step` or `lamb_step` of `load_steps()`.
        updates: Of parameters that `can_step`.
    """
    beta1, beta2 = betas
    records = [
        TensorRecord(
            one.weight.data_ptr(),
            one.gradient.data_ptr(),
            one.exp_avg.data_ptr(),
            one.exp_avg_sq.data_ptr(),
            one.weight.numel(),
            1 - beta1**one.step,
            1 - beta2**one.step,
            one.weight_decay,
            one.use_trust_ratio,
        )
        for one in updates
    ]
    settings = SettingsRecord(learning_rate, beta1, beta2, eps)
    count = len(records)
    state = [part for one in updates for part in (one.weight, one.exp_avg, one.exp_avg_sq)]
    read = [*state, *(one.gradient for one in updates)]
    with own_kernel(function.__name__, read, state):
        function(
            (TensorRecord * count)(*records),
            ctypes.c_int64(count),
            ctypes.byref(settings),
            ctypes.c_int(torch.get_num_threads()),
        )


CACHE_LINE = 64


def laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """The tensor in the parameter's memory layout; itself if it is so already.

    A fused optimizer walks through a parameter, its gradient and its state place by place in
    memory: one in another layout would be taken for other weights', without an error.

    Args:
        parameter: Without gaps in memory, in any order of its dimensions.
        tensor: Of the parameter's shape, or a single number, which has no layout.
    """
    if tensor.dim() == 0 or have_same_layout(parameter, tensor):
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)


def have_same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether equal places of two tensors of one shape are equally far into their memory."""
    if one.stride() == other.stride():
        return True
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    # Nobody walks along a dimension of size 1, and torch gives it any stride.
    return all(size == 1 or first == second for size, first, second in strides)


def is_one_block(tensor: Tensor) -> bool:
    """Whether the values fill a piece of memory without gaps, as all weights of a model do."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def channels_last(tensor: Tensor) -> Tensor:
    """The tensor as [N, H, W, C] in memory, copied if it is laid out otherwise.

    Also where torch's own test cannot tell, as with one channel or maps of one pixel.
    """
    return tensor.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def aligned_bytes(size: int) -> Tensor:
    """Return `size` bytes of memory that begin with a cache line."""
    block = torch.empty(size + CACHE_LINE, dtype=torch.uint8)
    return block[-block.data_ptr() % CACHE_LINE :][:size]


def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The L2 norm of all gradients together: one number over all parameters that have one.

    It is infinite or NaN where a gradient is, and where the squares leave float32's range: Adam's
    second average would be infinite then.
    """
    # Gradients of IPEX's weights are BF16, in which torch would round the norm of each tensor.
    gradients = [gradient.float() for gradient in gradients_of(parameters)]
    return get_total_norm(gradients, foreach=True).item()


def clip_gradients(
    parameters: Iterable[nn.Parameter], *, norm: float, longest: float | None
) -> None:
    """Shorten all gradients by one factor, so that their norm is `longest`; shorter ones stay.

    Args:
        parameters: Those that the norm was taken of.
        norm: See `gradient_norm`; finite.
        longest: The norm that they may have; None: any.
    """
    if longest is not None and norm > longest:
        # In float32, as torch's own clip_grad_norm_ has it.
        total = torch.tensor(norm, dtype=torch.float32)
        clip_grads_with_norm_(parameters, longest, total, foreach=True)


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients that there are."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
