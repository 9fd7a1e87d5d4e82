"""Whether the weights that a run starts from are there."""

from pathlib import Path

import torch

from retinanet.config import ModelConfig
from retinanet.errors import InputError
from retinanet.preflight.finding import Finding, failure, ok, warning
from retinanet.training.pretrained import FROM_TORCHVISION, dropped_parts
from retinanet.training.start import build_model, starting_weights

SUBJECT = "weights"


def check_weights(settings: ModelConfig) -> Finding:
    """Read the pretrained backbone and put it into a model; a download is not begun."""
    source = settings.pretrained_backbone
    if source == FROM_TORCHVISION and not is_downloaded():
        found = f"torchvision's are not in {torch.hub.get_dir()} yet"
        fix = "the run downloads them first; without a network give model.pretrained_backbone=FILE"
        return warning(SUBJECT, found, fix=fix)
    try:
        weights = starting_weights(settings)
        if weights is not None:
            with torch.device("cpu"):
                build_model(settings, num_classes=1, weights=weights)
    except InputError as error:
        return failure(SUBJECT, str(error), fix="")
    if weights is None:
        return ok(SUBJECT, "random ones")
    dropped = dropped_parts(weights)
    rest = f"; a whole detector, of which these are dropped: {dropped}" if dropped else ""
    return ok(SUBJECT, f"{source}: read, and they fit{rest}")


def is_downloaded() -> bool:
    """Whether torchvision's weights are in torch's cache."""
    from torchvision.models import ResNeXt50_32X4D_Weights  # noqa: PLC0415 - slow to import

    name = Path(ResNeXt50_32X4D_Weights.IMAGENET1K_V1.url).name
    return Path(torch.hub.get_dir(), "checkpoints", name).is_file()
