"""The norm of the detector's gradients, which every training step takes."""

import torch

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.gradient_norm import clip_gradients, gradient_norm
from retinanet.training.start import build_model


def prepare(workload: Workload, *, clips: bool) -> Prepared:
    """`clips`: shorten the gradients too, each time."""
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter) * 1e-3

    def run() -> dict[str, float]:
        norm = gradient_norm(model.parameters())
        clip_gradients(model.parameters(), norm=norm, longest=0.999 * norm if clips else None)
        return {}

    return Prepared(run)
