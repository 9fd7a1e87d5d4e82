"""Weights in torch's own files (`.pth`), each of which is a pickle: a program that builds objects.

`weights_only=True` lets such a program build tensors and plain containers only. In torch before
2.10 it does so carelessly: CVE-2026-24747, memory that a file made for it can corrupt, and with it
run code. So such files are read here alone, for `python -m retinanet convert` and for the one file
of torchvision's that is known by its hash.
"""

import argparse
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retinanet.errors import InputError
from retinanet.model.state_keys import current_key
from retinanet.printable import printable
from retinanet.regular_files import read_bytes

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


LARGEST_RATIO = 4
"""Bytes of tensors to those of the file: tensors that share memory, such as tied weights, are
copied each."""
NAMES_SHOWN = 5
MOST_BYTES = 8_000_000_000
"""Of a `.pth`: a detector and its optimizer's state take half a gigabyte."""
REFUSED_GLOBAL = re.compile(r"GLOBAL (\S+)")
"""How torch names what a pickle would have called."""
ESCAPE_CODE = re.compile(r"\x1b\[[0-9;]*m")


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
            f"from: python -m retinanet convert {path} --out {path.with_suffix('.safetensors')}; a "
            f"whole detector becomes a checkpoint: python -m retinanet convert --detector {path} "
            f"--classes FILE.json --out {path.with_suffix('')}"
        )


def is_imagenet_file(content: bytes) -> bool:
    """Whether these are the bytes of torchvision's own file."""
    return hashlib.sha512(content).hexdigest() == IMAGENET_SHA512


def read_trusted(file: Path, *, trust: bool) -> tuple[bytes, bool]:
    """Return a file's bytes, and whether they are torchvision's own, which need no trust.

    Raises:
        InputError: It cannot be read, or is not trusted.
    """
    try:
        content = read_bytes(file, most_bytes=MOST_BYTES)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    is_known = is_imagenet_file(content)
    if not trust and not is_known:
        raise InputError(
            f"{file}: is a pickle, which can run code as it is loaded: torch's weights_only=True, "
            "by which it is read here, has a known hole before torch 2.10 (CVE-2026-24747); "
            "nothing was read; if you trust whoever made the file, give --trust"
        )
    return content, is_known


def unpickle_weights(content: bytes, file: Path) -> PickledWeights:
    """Load a state_dict, bare or under one of `WRAPPINGS`. The bytes must be trusted.

    Raises:
        InputError: They are no such file, or hold no dense tensors under names.
    """
    _require_plausible_sizes(content, file)
    try:
        # torchvision's and MLPerf's scripts save their command line beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails with whatever its bytes happen to mean
        raise InputError(f"{file}: cannot be read: {reason_of(error)}") from error
    limit = len(content)
    entries, dropped = without_wrapping(loaded)
    given = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    dropped += [str(name) for name in entries if name not in given]
    if not given or not all(isinstance(name, str) for name in given):
        raise InputError(f"{file}: holds no state_dict; save model.state_dict()")
    if sum(min(_size(value), limit) for value in given.values()) > LARGEST_RATIO * limit:
        raise InputError(f"{file}: its tensors say that they are larger than the file; damaged")
    names = {name: current_key(name) for name in given}
    if len(set(names.values())) < len(names):
        names = {name: name for name in given}  # both spellings of a name: the model will object
    return PickledWeights(
        {names[name]: dense(value, name, file, limit) for name, value in given.items()},
        renamed=sum(new != old for old, new in names.items()),
        dropped=tuple(dropped),
    )


def reason_of(error: Exception) -> str:
    """Return why torch.load failed, without its advice and the escape codes in it."""
    text = str(error)
    if refused := REFUSED_GLOBAL.search(text):
        return (
            f"holds {refused[1][:100]}, which is neither a tensor nor a plain container, and may "
            "be code; save the model's state_dict() alone"
        )
    return ESCAPE_CODE.sub("", text.strip().split("\n", maxsplit=1)[0])[:160]


def told(file: Path, content: bytes, weights: PickledWeights, *, is_known: bool) -> list[str]:
    """What was read and what of it was dropped, line by line."""
    origin = "torchvision's, by its SHA-512" if is_known else "unpickled because you said --trust"
    digest = hashlib.sha256(content).hexdigest()
    lines = [f"{file}: {len(content):,} bytes, sha256 {digest}, {origin}"]
    if weights.renamed:
        lines.append(f"renamed: {weights.renamed:,} tensors, from older spellings of their names")
    if weights.dropped:
        lines.append(f"dropped, being no tensors: {shown(weights.dropped)}")
    return [printable(line) for line in lines]


def shown(names: Sequence[str]) -> str:
    """The first few names."""
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(name[:60] for name in names[:NAMES_SHOWN]) + more


def _require_plausible_sizes(content: bytes, file: Path) -> None:
    """Refuse an archive that says it inflates to more than the file: torch.save stores tensors as
    they are, and torch.load allocates what the archive says.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except Exception:  # torch's older format, or a damaged archive: torch.load tells which
        return
    if size > len(content):
        raise InputError(
            f"{file}: inflates to {size:,} bytes from {len(content):,}; "
            "save it again with torch.save, which does not compress"
        )


def _size(value: Tensor) -> int:
    return value.numel() * value.element_size()


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
    if _size(value) > limit:
        raise InputError(f"{file}: {name}: says that it is larger than the file; it is damaged")
    return value.detach().clone(memory_format=torch.contiguous_format)
