"""Backbone weights to start from, and the refusal to start without where that cannot work."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from retinanet.errors import InputError
from retinanet.model.backbone import IN_DETECTOR
from retinanet.printable import printable
from retinanet.training.pickled_weights import IMAGENET_FILE, is_imagenet_file, unpickle_weights

FROM_TORCHVISION = "torchvision"


def require_trainable_start(
    pretrained_backbone: str | None, *, norm: str, trainable_layers: int
) -> None:
    """Refuse random weights that nothing could train.

    Frozen layers would stay random, and frozen norms would let random layers' activations grow
    from block to block.

    Raises:
        InputError: Says what to set.
    """
    if pretrained_backbone is not None:
        return
    frozen = "model.norm: frozen" if norm == "frozen" else ""
    if trainable_layers < 5:
        frozen = f"model.trainable_layers: {trainable_layers}"
    if frozen:
        raise InputError(
            f"{frozen} needs pretrained weights; set model.pretrained_backbone to a "
            ".safetensors file of resnext50_32x4d, or to `torchvision` to download them; "
            "or train from random weights with model.norm=batch model.trainable_layers=5"
        )


def read_backbone_weights(pretrained_backbone: str) -> dict[str, Tensor]:
    """Weights of a resnext50_32x4d.

    Args:
        pretrained_backbone: A .safetensors file, or `torchvision` for ImageNet's weights
            (`ResNeXt50_32X4D_Weights.IMAGENET1K_V1`, which MLPerf starts from), from torch's cache
            or its download site.

    Raises:
        InputError: There is no such file, it holds something else, or the site is not reachable.
    """
    if pretrained_backbone == FROM_TORCHVISION:
        return read_torchvision_weights()
    file = Path(pretrained_backbone)
    if not file.is_file():
        raise InputError(
            f"model.pretrained_backbone: {file} does not exist; give a .safetensors file or "
            "`torchvision`"
        )
    try:
        return load_file(file)
    except Exception as error:  # OSError, SafetensorError, and what a hostile header may cause
        reason = str(error).strip().split("\n", maxsplit=1)[0][:160]
        raise InputError(f"model.pretrained_backbone: {file} cannot be read: {reason}") from error


def dropped_parts(weights: Mapping[str, Tensor]) -> str:
    """Return what of a whole detector a backbone leaves out; nothing for a classifier's weights."""
    if not any(name.startswith(IN_DETECTOR) for name in weights):
        return ""
    dropped = [name for name in weights if not name.startswith(IN_DETECTOR)]
    parts = Counter(".".join(name.split(".")[:2]) for name in dropped)
    return ", ".join(f"{printable(part[:60])} ({count})" for part, count in parts.most_common(5))


def notes_on_backbone(source: str | None, weights: Mapping[str, Tensor] | None) -> list[str]:
    """Return what a run tells about the weights it starts from."""
    dropped = dropped_parts(weights or {})
    if not dropped:
        return []
    return [
        f"model.pretrained_backbone: {source} is a whole detector, of which only the backbone is "
        f"used; dropped, by number of tensors: {dropped}"
    ]


def read_torchvision_weights() -> dict[str, Tensor]:
    """ImageNet weights from torch's cache; they are downloaded to it if they are not there.

    The file is a pickle, so its whole hash is compared before anything of it is loaded.

    Raises:
        InputError: It cannot be fetched or read, or is another file.
    """
    from torchvision.models import ResNeXt50_32X4D_Weights  # noqa: PLC0415 - slow to import

    url = ResNeXt50_32X4D_Weights.IMAGENET1K_V1.url
    file = Path(torch.hub.get_dir()) / "checkpoints" / IMAGENET_FILE
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            digits = file.stem.rpartition("-")[2]
            torch.hub.download_url_to_file(url, str(file), hash_prefix=digits)
        content = file.read_bytes()
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"model.pretrained_backbone: torchvision: {url} could not be fetched "
            f"({error}); fetch it elsewhere to {file}, or train from random weights "
            "with model.norm=batch model.trainable_layers=5"
        ) from error
    if not is_imagenet_file(content):
        raise InputError(
            f"model.pretrained_backbone: torchvision: {file} is not the file that torchvision "
            "publishes (its SHA-512 differs), and was not loaded; remove it, and it is fetched anew"
        )
    return unpickle_weights(content, file).tensors
