"""An optimizer's step over all its tensors in one call of C++ (csrc/optimizers.cpp)."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retinanet.bytes_moved import own_kernel
from retinanet.engine.layout import is_one_block, laid_out_as
from retinanet.native_library import load_library

SOURCE = Path(__file__).parent / "csrc" / "optimizers.cpp"


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
