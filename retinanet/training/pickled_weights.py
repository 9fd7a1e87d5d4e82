"""Weights in torch's own files (`.pth`), each of which is a pickle: a program that builds objects.

`weights_only=True` lets such a program build tensors and plain containers only. In torch before
2.10 it does so carelessly: CVE-2026-24747, memory that a file made for it can corrupt, and with it
run code. So such files are read here alone, for `python -m retinanet convert` and for the one file
of torchvision's that is known by its hash.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retinanet.errors import InputError
from retinanet.model.state_keys import current_key

IMAGENET_FILE = "resnext50_32x4d-7cdf4587.pth"
"""`ResNeXt50_32X4D_Weights.IMAGENET1K_V1`: the digits are those that its SHA-256 begins with."""
IMAGENET_SHA512 = (
    "15c9f0bc1c8d64750712f86ffaded3b0bc6a87e77a395dcda3013d8af65b7ebf"
    "3ca1c24dd3aae60c0d83e510b4d27731f0526b6f9392c0a85ffc18e5fecd8a13"
)
"""The whole file's, as MLPerf's reference checks it: single_stage_detector's download_backbone.sh.
It comes from another source than the digits in the name."""
SUFFIXES = (".pth", ".pt", ".pkl", ".ckpt", ".bin")
WRAPPINGS = ("model", "state_dict")
"""Keys under which training scripts put a state_dict: torchvision's and MLPerf's, and others."""


@dataclass(frozen=True)
class PickledWeights:
    """What a file holds."""

    tensors: dict[str, Tensor]
    """Dense, each with memory of its own, under today's names."""
    renamed: int
    """How many had an older spelling; see `retinanet.model.state_keys`."""
    dropped: tuple[str, ...]
    """What stood beside them and is no tensor."""


def refuse_pickle(path: Path, *, what: str) -> None:
    """Refuse a file that is a pickle by its name, where `what` is expected.

    Raises:
        InputError: Says which command makes weights of it that can be trained from.
    """
    if path.suffix in SUFFIXES:
        raise InputError(
            f"{path}: is a pickle, which could run code, and no {what}; its weights can be trained "
            f"from: python -m retinanet convert {path} --out {path.with_suffix('.safetensors')}"
        )


def is_imagenet_file(content: bytes) -> bool:
    """Whether these are the bytes of torchvision's own file."""
    return hashlib.sha512(content).hexdigest() == IMAGENET_SHA512


def unpickle_weights(content: bytes, file: Path) -> PickledWeights:
    """Load a state_dict, bare or under one of `WRAPPINGS`. The bytes must be trusted.

    Raises:
        InputError: They are no such file, or hold no dense tensors under names.
    """
    try:
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails with whatever its bytes happen to mean
        reason = str(error).strip().split("\n", maxsplit=1)[0][:160]
        raise InputError(f"{file}: cannot be read: {reason}") from error
    entries, dropped = without_wrapping(loaded)
    given = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    dropped += [str(name) for name in entries if name not in given]
    if not given or not all(isinstance(name, str) for name in given):
        raise InputError(f"{file}: holds no state_dict; save model.state_dict()")
    names = {name: current_key(name) for name in given}
    if len(set(names.values())) < len(names):
        names = {name: name for name in given}  # both spellings of a name: the model will object
    return PickledWeights(
        {names[name]: dense(value, name, file, len(content)) for name, value in given.items()},
        renamed=sum(new != old for old, new in names.items()),
        dropped=tuple(dropped),
    )


def without_wrapping(loaded: object) -> tuple[Mapping[Any, Any], list[str]]:
    """The state_dict in what a file holds, and the names of what stands beside it."""
    if not isinstance(loaded, dict):
        return {}, []
    for wrapping in WRAPPINGS:
        inner = loaded.get(wrapping)
        if isinstance(inner, dict):
            return inner, [str(name) for name in loaded if name != wrapping]
    return loaded, []


def dense(value: Tensor, name: str, file: Path, limit: int) -> Tensor:
    """A tensor as safetensors holds them: contiguous, its memory shared with no other.

    Raises:
        InputError: It is sparse or quantized, or needs more bytes than `limit`, the file's.
    """
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise InputError(f"{file}: {name}: is no dense tensor; save the model's plain state_dict()")
    if value.numel() * value.element_size() > limit:
        raise InputError(f"{file}: {name}: says that it is larger than the file; it is damaged")
    return value.detach().clone(memory_format=torch.contiguous_format)
