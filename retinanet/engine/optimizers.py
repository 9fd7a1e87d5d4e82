"""The optimizers: torch's Adam, AdamW and SGD, and LAMB, which torch does not have.

LAMB takes steps as long as a share of the weights that they change, layer by layer: You et al.
2019, "Large Batch Optimization for Deep Learning", arXiv 1904.00962, algorithm 2. A step of all
tensors is one call of C++ (csrc/optimizers.cpp). The norm of all gradients of a step and their
clipping are here too.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import SGD, Adam, AdamW, Optimizer

from common.native import NativeLibraryError
from retinanet.config_types import DEFAULT_BETA1
from retinanet.engine.kernel_calls import (
    CSRC,
    Kernels,
    c_struct,
    is_one_block,
    match_memory_format,
)

STEP_KERNELS = Kernels(
    CSRC / "optimizers.cpp",
    adam_step="PqPi",
    sgd_step="PqPi",
    lamb_step="PqPi",
    gradient_squares="Pqi->d",
)

BETA2 = 0.999
LARGEST_FLOAT32 = torch.finfo(torch.float32).max
RATE_FACTOR = "learning_rate_factor"
"""Key of an optimizer's group whose learning rate is the run's times a factor."""


def make_optimizer(
    model: nn.Module,
    *,
    name: str,
    learning_rate: float,
    momentum: float = 0.0,
    beta1: float = DEFAULT_BETA1,
    weight_decay: float = 0.0,
    body_parameters: int = 0,
    body_factor: float = 1.0,
    fused: bool = True,
) -> Optimizer:
    """Return an optimizer over the parameters that train.

    Args:
        model: Its parameters keep their memory layout; the optimizer's state takes it over.
        name: `adam`, `adamw`, `sgd` or `lamb`. The second beta of all but SGD is 0.999.
        learning_rate: That of the first step; the training loop sets each step's own.
        momentum: SGD's.
        beta1: The first beta of all but SGD.
        weight_decay: Joins the gradient (L2) for adam and sgd, and the update (decoupled) for
            adamw, as in torch, and for lamb, whose biases and norms have none.
        body_parameters: The first so many parameters that train have a learning rate of their own.
        body_factor: Its factor, see `set_learning_rate`.
        fused: Whether to use our C++. Without a compiler lamb's step is plain PyTorch, with one
            line on stderr, and the others are torch's fused ones. False: plain PyTorch, tensor by
            tensor; the same numbers up to rounding.
    """
    assert name in ("adam", "adamw", "sgd", "lamb"), name
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trainable: Any = parameters
    # A single group otherwise: two would halve what a fused step computes in one call.
    if body_factor != 1:
        body, others = parameters[:body_parameters], parameters[body_parameters:]
        trainable = [{"params": body, RATE_FACTOR: body_factor}, {"params": others}]
    settings: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    if name == "lamb":
        compiled = fused and native_steps_work()
        return Lamb(trainable, betas=(beta1, BETA2), fused=compiled, **settings)
    settings |= {"fused": True} if fused else {"foreach": False}
    settings |= {"momentum": momentum} if name == "sgd" else {"betas": (beta1, BETA2)}
    in_one_call = fused and all(map(can_step, parameters)) and STEP_KERNELS.are_available()
    kinds: dict[str, Any] = (
        {"adam": FusedAdam, "adamw": FusedAdamW, "sgd": FusedSGD}
        if in_one_call
        else {"adam": Adam, "adamw": AdamW, "sgd": SGD}
    )
    optimizer: Optimizer = kinds[name](trainable, **settings)
    if fused:
        optimizer.register_step_pre_hook(match_layouts)
    return optimizer


def match_layouts(optimizer: Optimizer, *_: Any) -> None:
    """Give gradients and state the memory layout of their parameters.

    State of a checkpoint, and gradients of some kernels, may be laid out otherwise, which torch's
    fused steps do not notice.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = match_memory_format(parameter, parameter.grad)
            state = optimizer.state.get(parameter, {})
            for slot, value in state.items():
                if isinstance(value, Tensor):
                    state[slot] = match_memory_format(parameter, value)


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Set the rate of the next step, in each group times the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get(RATE_FACTOR, 1.0)


@functools.cache
def native_steps_work() -> bool:
    """Return whether LAMB's C++ is available; if not, the first call prints why on stderr."""
    try:
        STEP_KERNELS.library()
    except NativeLibraryError as error:
        reason = str(error).splitlines()[0]
        print(
            f"optimizer: using PyTorch's step instead of the compiled one: {reason}",
            file=sys.stderr,
        )
        return False
    return True


class FusedAdam(Adam):
    """torch's Adam with `fused`: the same bits and state, in one pass over the memory.

    torch's own step copies gradients in channels_last memory, and its threads share one tensor at
    a time. All parameters `can_step`.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        step_in_one_call(self, "adam_step", next_update)


class FusedAdamW(AdamW):
    """torch's AdamW, as `FusedAdam`."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        step_in_one_call(self, "adam_step", next_update)


class FusedSGD(SGD):
    """torch's SGD, as `FusedAdam`."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        step_in_one_call(self, "sgd_step", next_momentum)


def step_in_one_call(
    optimizer: Optimizer, kernel: str, next_of_kind: "Callable[..., TensorUpdate]"
) -> None:
    """Take a step of each group by C++; `next_of_kind` is `next_update` or `next_momentum`."""
    for group in optimizer.param_groups:
        updates = [
            # SGD without momentum has no state.
            next_of_kind(
                parameter, optimizer.state[parameter] if group.get("momentum") != 0 else {}, group
            )
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        native_step(kernel, updates, group)


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
        """Store the settings, without computing or compiling.

        `lr` is the length of a step as a share of the norm of the weights; `eps` is added to the
        root of the second average; `weight_decay` is the share of a weight that is added to its
        update. If `fused`, C++ updates all float32 tensors in one call; all others are updated by
        plain PyTorch, tensor by tensor.
        """
        settings = {"lr": lr, "betas": betas, "eps": eps}
        super().__init__(parameters, {**settings, "weight_decay": weight_decay, "fused": fused})
        self.register_step_pre_hook(match_layouts)

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
                    group if parameter.dim() > 1 else {**group, "weight_decay": 0.0},
                    use_trust_ratio=parameter.dim() > 1,
                )
                for parameter in group["params"]
                if parameter.grad is not None
            ]
            fused = [update for update in updates if group["fused"] and can_step(update.weight)]
            if fused:
                native_step("lamb_step", fused, group)
            for update in updates:
                if not (group["fused"] and can_step(update.weight)):
                    plain_step(update, group)


@dataclass(frozen=True, kw_only=True)
class TensorUpdate:
    """A parameter with a gradient, and the inputs of its next step; all have one memory layout."""

    weight: Tensor
    gradient: Tensor
    exp_avg: Tensor | None
    """Running average of the gradient, of the steps before this one; SGD: the momentum, or none."""
    exp_avg_sq: Tensor | None  # Running average of its square, of all but SGD
    step: int  # This step's number, from 1; of all but SGD
    weight_decay: float
    use_trust_ratio: bool = False
    """Whether the step is scaled by the weight's norm."""


def plain_step(update: TensorUpdate, group: Mapping[str, Any]) -> None:
    """Take LAMB's step of one tensor by PyTorch's operators; `group` has `lr`, `betas`, `eps`."""
    weight, gradient, step = update.weight, update.gradient, update.step
    assert update.exp_avg is not None and update.exp_avg_sq is not None
    beta1, beta2 = group["betas"]
    update.exp_avg.lerp_(gradient, 1 - beta1)
    update.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = (update.exp_avg_sq / (1 - beta2**step)).sqrt_().add_(group["eps"])
    direction = (update.exp_avg / (1 - beta1**step)).div_(root)
    # Added before the norm is taken: the trust ratio scales the decay as well (algorithm 2).
    if update.weight_decay:
        direction.add_(weight, alpha=update.weight_decay)
    ratio = 1.0
    if update.use_trust_ratio:
        weight_norm, direction_norm = weight.norm().item(), direction.norm().item()
        if weight_norm > 0 and direction_norm > 0:
            ratio = weight_norm / direction_norm
    weight.sub_(direction, alpha=group["lr"] * ratio)


_tensor_record = c_struct(
    "P weight gradient exp_avg exp_avg_sq",
    "q size",
    "d correction1 correction2 weight_decay",
    "i use_trust_ratio",
)
"""`TensorUpdate` as optimizers.cpp has it."""
_settings_record = c_struct("d learning_rate beta1 beta2 eps", "i is_decoupled")
"""The settings of a group, as optimizers.cpp has them."""


def next_update(
    parameter: Tensor,
    state: dict[str, Any],
    group: Mapping[str, Any],
    *,
    use_trust_ratio: bool = False,
) -> TensorUpdate:
    """Count a step in the state of a parameter that has a gradient, and return its update.

    State is made the first time, under the names of torch's Adam.
    """
    assert parameter.grad is not None
    if not state:
        # A tensor, as in torch's optimizers.
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    state["step"] += 1
    return TensorUpdate(
        weight=parameter,
        gradient=parameter.grad,
        exp_avg=state["exp_avg"],
        exp_avg_sq=state["exp_avg_sq"],
        step=int(state["step"]),
        weight_decay=group["weight_decay"],
        use_trust_ratio=use_trust_ratio,
    )


def next_momentum(
    parameter: Tensor, state: dict[str, Any], group: Mapping[str, Any]
) -> TensorUpdate:
    """Return SGD's update of a parameter that has a gradient; state has the name of torch's."""
    assert parameter.grad is not None
    momentum = state.get("momentum_buffer")
    if momentum is None and group["momentum"] != 0:
        # torch's first momentum is the gradient: -0.0 plus any value is that value, -0.0 included.
        momentum = state["momentum_buffer"] = torch.full_like(parameter, -0.0)
    return TensorUpdate(
        weight=parameter,
        gradient=parameter.grad,
        exp_avg=momentum,
        exp_avg_sq=None,
        step=0,
        weight_decay=group["weight_decay"],
    )


def can_step(tensor: Tensor) -> bool:
    """Return whether the C++ supports a parameter or a gradient: contiguous float32 values."""
    return tensor.dtype == torch.float32 and tensor.is_cpu and is_one_block(tensor)


def native_step(kernel: str, updates: Sequence[TensorUpdate], group: Mapping[str, Any]) -> None:
    """Take a step of parameters that `can_step`, on torch's number of threads."""
    beta1, beta2 = group.get("betas") or (group["momentum"], 0.0)
    records = [
        _tensor_record(
            update.weight,
            update.gradient,
            update.exp_avg,
            update.exp_avg_sq,
            update.weight.numel(),
            1 - beta1**update.step,
            1 - beta2**update.step,
            update.weight_decay,
            update.use_trust_ratio,
        )
        for update in updates
    ]
    settings = _settings_record(
        group["lr"], beta1, beta2, group.get("eps", 0.0), group.get("decoupled_weight_decay", False)
    )
    state = [
        part for u in updates for part in (u.weight, u.exp_avg, u.exp_avg_sq) if part is not None
    ]
    STEP_KERNELS.call(
        kernel, b"".join(records), len(records), settings, torch.get_num_threads(),
        read=[*state, *(update.gradient for update in updates)], written=state,
    )  # fmt: skip


def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Return the L2 norm of all gradients.

    It is infinite or NaN where a gradient is, and where the squares leave float32's range: Adam's
    second average would be infinite then. One call of C++ with all threads: torch computes the
    norm of each tensor with one.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not (all(map(can_step, gradients)) and STEP_KERNELS.are_available()):
        # Gradients of IPEX's weights are BF16, in which torch would round the norm of each tensor.
        return get_total_norm([gradient.float() for gradient in gradients], foreach=True).item()
    records = [
        _tensor_record(None, gradient, None, None, gradient.numel(), 0, 0, 0, False)
        for gradient in gradients
    ]
    squares: float = STEP_KERNELS.call(
        "gradient_squares", b"".join(records), len(records), torch.get_num_threads(),
        read=gradients, written=(), kernel="gradient_norm",
    )  # fmt: skip
    return math.sqrt(squares) if squares <= LARGEST_FLOAT32 else squares * math.inf


def clip_gradients(
    parameters: Iterable[nn.Parameter], *, norm: float, longest: float | None
) -> None:
    """Scale all gradients by one factor so that their norm is at most `longest`.

    `norm` is the parameters' `gradient_norm`, and finite.
    """
    if longest is not None and norm > longest:
        # In float32, as torch's own clip_grad_norm_ has it.
        total = torch.tensor(norm, dtype=torch.float32)
        clip_grads_with_norm_(parameters, longest, total, foreach=True)
