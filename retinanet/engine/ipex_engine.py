"""Intel's extension for PyTorch (IPEX), the engine of the paper.

Nothing else imports it, and nothing imports it unless it was asked for: it replaces operators and
autocast rules of torch for the whole process.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.optim import Optimizer
from torchvision.ops import FrozenBatchNorm2d

from retinanet.errors import InputError
from retinanet.model import RetinaNet

PACKAGE = "intel_extension_for_pytorch"
FITTING_TORCH = "2.8"
"""Its last release is made for this one."""
ADVICE = "run `make ipex`, or set engine.name=torch"


def require_ipex() -> None:
    """Look whether IPEX is here and fits torch, without importing it.

    Raises:
        InputError: It is not installed, or made for another torch.
    """
    if find_spec(PACKAGE) is None:
        if not torch.__version__.startswith(f"{FITTING_TORCH}."):
            raise InputError(
                f"engine.name: ipex works with torch {FITTING_TORCH} only, this is torch "
                f"{torch.__version__}; run `make ipex` and .venv/bin/python, or set "
                "engine.name=torch"
            )
        raise InputError(f"engine.name: ipex is not installed; {ADVICE}")
    release = version(PACKAGE)
    if release.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise InputError(
            f"engine.name: ipex {release} does not work with torch {torch.__version__}, only with "
            f"its own release number; {ADVICE}"
        )


def prepare_with_ipex(
    model: RetinaNet, optimizer: Optimizer, *, precision: str, prepack: bool = True
) -> tuple[RetinaNet, Optimizer]:
    """`ipex.optimize` for training, in place; state that the optimizer has already is kept.

    Convolution weights go into oneDNN's blocked layouts if `prepack`. For "bf16" they are split
    into a BF16 half, which the network uses, and the rest, which makes it float32 again for the
    update. The optimizer's step is IPEX's fused one. `state_dict()` of both gives plain float32
    tensors.

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
    except AssertionError as error:  # of the processor's instructions
        raise InputError(f"engine.name: ipex: {error}") from error
    return prepared


def use_frozen_norms(
    module: nn.Module, kind: type[nn.Module], *, instead_of: type[nn.Module] = FrozenBatchNorm2d
) -> None:
    """Put `kind`, a frozen batch norm with torchvision's buffers, in place of torchvision's."""
    for name, child in module.named_children():
        if isinstance(child, instead_of):
            norm = kind(len(child.state_dict()["weight"]), eps=child.eps)
            norm.load_state_dict(child.state_dict())
            setattr(module, name, norm)
        else:
            use_frozen_norms(child, kind, instead_of=instead_of)


def import_ipex() -> ModuleType:
    """IPEX, without the warnings of every start.

    Raises:
        InputError: It cannot be loaded; says why.
    """
    require_ipex()
    try:
        with standard_error_silenced():
            import intel_extension_for_pytorch as ipex  # noqa: PLC0415
    # It ends the process where it stands on a CPU without AVX2.
    except (ImportError, OSError, RuntimeError, SystemExit) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"engine.name: ipex cannot be loaded: {reason}; {ADVICE}") from error
    # It warns that options of `optimize` which it has by default will go with its next release.
    logging.getLogger("IPEX").setLevel(logging.ERROR)
    return ipex


@contextmanager
def standard_error_silenced() -> Iterator[None]:
    """Drop what this process writes to its standard error, from C++ too."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
