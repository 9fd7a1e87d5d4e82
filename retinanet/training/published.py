"""The files of weights that torchvision publishes: ImageNet's for backbones, COCO's for detectors.

They are pickles. Each is known by the hash of the whole file, which is compared before anything of
it is loaded; torchvision compares eight digits, and only when it downloads.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torchvision.models import get_model_weights

from common.errors import InputError

IMAGENET, COCO = "IMAGENET1K_V1", "COCO_V1"
PUBLISHED = {
    "resnext50_32x4d-7cdf4587.pth": (
        "15c9f0bc1c8d64750712f86ffaded3b0bc6a87e77a395dcda3013d8af65b7ebf"
        "3ca1c24dd3aae60c0d83e510b4d27731f0526b6f9392c0a85ffc18e5fecd8a13"
    ),
    "resnet50-0676ba61.pth": "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a",
    "resnet101-63fe2227.pth": "63fe2227b86e8f1f2063f43a75c84d195911b6a0eace650907dd3dc62dd49a0a",
    "retinanet_resnet50_fpn_coco-eeacb38b.pth": (
        "eeacb38b7cec8cf93c57867e05eaab621047f19b0d2ec5accaa405f690da15b7"
    ),
    "retinanet_resnet50_fpn_v2_coco-5905b1c5.pth": (
        "5905b1c544219215e544dbe319720397bc4e68de61a733a59350d7976645b769"
    ),
}
"""The first has a SHA-512, from MLPerf's reference (single_stage_detector's download_backbone.sh);
the others a SHA-256, from public lists of their users that agree, also with the digits in the names
and with the sizes that torchvision states."""


def published_name(content: bytes) -> str | None:
    """Return the name of torchvision's file that has these bytes; None if it has no such file."""
    digests = {kind(content).hexdigest() for kind in (hashlib.sha256, hashlib.sha512)}
    return next((name for name, digest in PUBLISHED.items() if digest in digests), None)


def published_weights(model: str, data: str) -> Any:
    """Return torchvision's entry of a model trained on `IMAGENET` or `COCO`: address and facts."""
    return get_model_weights(model)[data]


def cached_file(weights: Any) -> Path:
    """Return where torch keeps the file of an entry."""
    return Path(torch.hub.get_dir(), "checkpoints", str(weights.url).rpartition("/")[2])


def read_published(weights: Any) -> tuple[bytes, Path]:
    """Return the bytes of an entry's file in torch's cache; download it if it is not there.

    Raises:
        InputError: It cannot be downloaded, or is not the published file.
    """
    file = cached_file(weights)
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            digits = file.stem.rpartition("-")[2]
            torch.hub.download_url_to_file(weights.url, str(file), hash_prefix=digits)
        # The file is read once: the bytes that are hashed are the bytes that are unpickled.
        content = file.read_bytes()
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"torchvision: {weights.url} could not be downloaded ({error}); download it elsewhere "
            f"and copy it to {file}, or train from random weights with model.norm=batch "
            "model.trainable_layers=5"
        ) from error
    if published_name(content) != file.name:
        raise InputError(
            f"torchvision: {file} is not the file that torchvision publishes (its hash differs), "
            "and was not loaded; remove it to download it again"
        )
    return content, file
