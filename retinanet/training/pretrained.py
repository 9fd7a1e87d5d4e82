"""Backbone weights to start from, and the refusal to start without where that cannot work."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from retinanet.errors import InputError

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
            ".safetensors or .pth file of resnext50_32x4d, or to `torchvision` to download them; "
            "or train from random weights with model.norm=batch model.trainable_layers=5"
        )


def read_backbone_weights(pretrained_backbone: str) -> dict[str, Tensor]:
    """Weights of a resnext50_32x4d.

    Args:
        pretrained_backbone: A .safetensors or .pth file, or `torchvision` for ImageNet's weights
            (`ResNeXt50_32X4D_Weights.IMAGENET1K_V1`, which MLPerf starts from), from torch's cache
            or its download site.

    Raises:
        InputError: There is no such file, it holds something else, or the site is not reachable.
    """
    if pretrained_backbone == FROM_TORCHVISION:
        return download_from_torchvision()
    file = Path(pretrained_backbone)
    if not file.is_file():
        raise InputError(
            f"model.pretrained_backbone: {file} does not exist; give a file or `torchvision`"
        )
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        # weights_only: tensors and plain containers, no code.
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails with whatever its bytes happen to mean
        reason = str(error).strip().split("\n", maxsplit=1)[0][:160]
        raise InputError(f"model.pretrained_backbone: {file} cannot be read: {reason}") from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]  # as MLPerf's reference and torchvision's scripts save it
    if not isinstance(content, dict) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise InputError(
            f"model.pretrained_backbone: {file} holds no state_dict; save model.state_dict()"
        )
    return content


def download_from_torchvision() -> dict[str, Tensor]:
    """ImageNet weights through torch.hub, checked against the hash in their name."""
    from torchvision.models import ResNeXt50_32X4D_Weights  # noqa: PLC0415 - slow to import

    weights = ResNeXt50_32X4D_Weights.IMAGENET1K_V1
    try:
        return dict(weights.get_state_dict(progress=True, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"model.pretrained_backbone: torchvision: {weights.url} could not be fetched "
            f"({error}); fetch it elsewhere and give the file's path, or train from random weights "
            "with model.norm=batch model.trainable_layers=5"
        ) from error
