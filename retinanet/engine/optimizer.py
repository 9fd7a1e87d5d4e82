"""The optimizer, in the form that is fastest on CPUs."""

import functools
import sys
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from retinanet.engine.adam import OnePassAdam
from retinanet.engine.lamb import Lamb
from retinanet.engine.native_step import load_steps
from retinanet.momentum import BETA1
from retinanet.native_library import NativeLibraryError

BETA2 = 0.999


def make_optimizer(
    model: nn.Module,
    *,
    name: str,
    learning_rate: float,
    momentum: float = 0.0,
    beta1: float = BETA1,
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
