"""A whole evaluation step: a batch of images in, boxes out."""

from typing import Literal

import torch

from data.transforms import normalize
from profiling.bench.recipe import Prepared
from profiling.bench.recipes.detection_outputs import make_detecting_weights
from profiling.bench.recipes.synthetic import make_batch
from profiling.bench.recipes.torchvision_model import torchvision_model
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import detect_batch
from retinanet.training.start import build_model


def prepare(
    workload: Workload,
    *,
    whose: str,
    norm: Literal["frozen", "batch"] = "frozen",
    precision: str = "bf16",
) -> Prepared:
    """`whose`: "ours" or "torchvision". The details count the boxes that were found.

    `norm`, `precision`: as in a configuration, of ours.
    """
    batch = make_batch(workload)
    weights = make_detecting_weights(workload, normalize(batch.images))
    if whose == "torchvision":
        return torchvisions(workload, list(batch.images.contiguous() / 255), weights)
    settings = ModelConfig(norm=norm)
    model = build_model(settings, num_classes=workload.classes, weights=None).eval()
    # Norms that train also count the batches they have seen, which frozen ones do not.
    model.load_state_dict(weights, strict=norm == "frozen")
    forward = torch_forward(model, precision=precision)

    def run() -> dict[str, float]:
        found = detect_batch(model, batch.images, forward=forward)
        return {"boxes": sum(len(image.boxes) for image in found)}

    return Prepared(run)


def torchvisions(
    workload: Workload, images: list[torch.Tensor], weights: dict[str, torch.Tensor]
) -> Prepared:
    """BF16 autocast, channels_last; `images` are in [0, 1]."""
    model = torchvision_model(workload)
    model.load_state_dict(weights)
    model.to(memory_format=torch.channels_last).eval()

    def run() -> dict[str, float]:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(images)
        return {"boxes": sum(len(image["boxes"]) for image in found)}

    return Prepared(run)
