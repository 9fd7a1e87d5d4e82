"""The engines, which compute a model and update its weights, behind one interface.

One is torch with this package's forward pass, the other Intel's extension for PyTorch (IPEX), the
engine of the paper. IPEX is imported in this file only, and only if `engine.name` is `ipex`: it
replaces operators and autocast rules of torch for the whole process.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torchvision.ops import FrozenBatchNorm2d

from common.console import discard_errors
from common.errors import InputError
from retinanet.engine.folded_forward import FoldedForward
from retinanet.model.retinanet import HeadOutputs, RetinaNet

Forward = Callable[[Tensor], HeadOutputs]
"""From normalized images [N, 3, H, W] to outputs, in the precision that it was made for."""

FASTEST = "torch"
"""The engine for `auto`: the faster one by measurement (docs/experiments.md)."""


@dataclass(frozen=True)
class PreparedTraining:
    """A model and its optimizer as an engine has arranged them, to be used instead."""

    model: RetinaNet
    """Holds weights, anchors, the mode. `state_dict()` is plain: float32, torchvision's names."""
    optimizer: Optimizer
    forward: Forward  # For training and evaluation, by the model's mode


def chosen_engine(name: str) -> str:
    """Return the engine that `auto`, `torch` or `ipex` means here: `torch` or `ipex`.

    Raises:
        InputError: `name` is `ipex`, which is not installed or made for another torch.
    """
    if name == "ipex":
        require_ipex()
    return FASTEST if name == "auto" else name


def prepare_training(
    model: RetinaNet,
    optimizer: Optimizer,
    *,
    engine: str,
    precision: str,
    convolutions: str = "auto",
) -> PreparedTraining:
    """Arrange a model and its optimizer for training; weights and optimizer state are kept.

    Load a checkpoint into the originals before: afterwards an engine may hold weights in pieces.
    `engine`: "torch" or "ipex", see `chosen_engine`. `precision`: "bf16" or "float32".
    `convolutions`: of the torch engine, see `choose_winograd`.

    Raises:
        InputError: IPEX or Winograd's convolutions are selected and do not work here.
    """
    if engine == "torch":
        forward = torch_forward(model, precision=precision, convolutions=convolutions)
        return PreparedTraining(model, optimizer, forward)
    assert engine == "ipex", engine
    model, optimizer = prepare_with_ipex(model, optimizer, precision=precision)
    return PreparedTraining(model, optimizer, autocast_forward(model, precision=precision))


def torch_forward(model: RetinaNet, *, precision: str, convolutions: str = "auto") -> Forward:
    """Return the forward pass of the torch engine, for training and evaluation."""
    return FoldedForward(model, precision=precision, convolutions=convolutions)


def autocast_forward(model: RetinaNet, *, precision: str) -> Forward:
    """Return the model's own forward pass under autocast."""

    def forward(images: Tensor) -> HeadOutputs:
        with autocast(precision):
            outputs: HeadOutputs = model(images)
        return outputs

    return forward


def autocast(precision: str) -> AbstractContextManager[None]:
    """Return a context in which convolutions and matrix products run in `bf16` or `float32`.

    Weights stay in float32.
    """
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")


PACKAGE = "intel_extension_for_pytorch"
ADVICE = "run `make ipex`, then `.venv-ipex/bin/retinanet train …`; or set engine.name=torch"
"""IPEX has an environment of its own, as it needs another torch than the default one."""


def require_ipex() -> None:
    """Check that IPEX is installed and fits torch, without importing it.

    Raises:
        InputError: It is not installed, or made for another torch.
    """
    torch_release = torch.__version__.partition("+")[0]
    if find_spec(PACKAGE) is None:
        raise InputError(
            f"engine.name: ipex is not installed beside torch {torch_release}; {ADVICE}"
        )
    release = version(PACKAGE)
    if release.split(".")[:2] != torch_release.split(".")[:2]:
        raise InputError(
            f"engine.name: ipex {release} does not work with torch {torch_release}, only with "
            f"its own release number; {ADVICE}"
        )


def prepare_with_ipex(
    model: RetinaNet, optimizer: Optimizer, *, precision: str, prepack: bool = True
) -> tuple[RetinaNet, Optimizer]:
    """Call `ipex.optimize` for training, in place; the optimizer's state is kept.

    Convolution weights go into oneDNN's blocked layouts if `prepack`. For "bf16" they are split
    into a BF16 half for the network and the remainder to float32 for the update, which is IPEX's
    fused one. `state_dict()` of both gives plain float32 tensors.

    Raises:
        InputError: IPEX does not work here.
    """
    ipex = import_ipex()
    use_frozen_norms(model, ipex.nn.FrozenBatchNorm2d)
    bf16 = precision == "bf16"
    logits = model.head.classification_head.cls_logits
    try:
        prepared: tuple[RetinaNet, Optimizer] = ipex.optimize(
            model.train(),
            optimizer=optimizer,
            dtype=torch.bfloat16 if bf16 else None,
            inplace=True,
            # The classification head pads an odd number of channels, which needs the plain weight.
            weights_prepack=prepack and logits.out_channels % 2 == 0,
            split_master_weight_for_bf16=bf16,
            fuse_update_step=True,
        )
    # ipex.optimize asserts that the processor has the instructions.
    except AssertionError as error:
        raise InputError(f"engine.name: ipex: {error}") from error
    return prepared


def use_frozen_norms(
    module: nn.Module, kind: type[nn.Module], *, instead_of: type[nn.Module] = FrozenBatchNorm2d
) -> None:
    """Replace frozen batch norms by `kind`, which has the same buffers."""
    for name, child in module.named_children():
        if isinstance(child, instead_of):
            norm = kind(len(child.state_dict()["weight"]), eps=child.eps)
            norm.load_state_dict(child.state_dict())
            setattr(module, name, norm)
        else:
            use_frozen_norms(child, kind, instead_of=instead_of)


def import_ipex() -> ModuleType:
    """Import IPEX, without the warnings of every start.

    Raises:
        InputError: It cannot be loaded; the message has the reason.
    """
    require_ipex()
    try:
        with discard_errors():
            import intel_extension_for_pytorch as ipex  # noqa: PLC0415
    # It ends the process where it stands on a CPU without AVX2.
    except (ImportError, OSError, RuntimeError, SystemExit) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"engine.name: ipex cannot be loaded: {reason}; {ADVICE}") from error
    # IPEX warns that options of `optimize`, set by default, will be removed in its next release.
    logging.getLogger("IPEX").setLevel(logging.ERROR)
    return ipex
