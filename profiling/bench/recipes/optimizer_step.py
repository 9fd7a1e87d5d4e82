"""An optimizer's step over the detector's weights, with gradients at hand."""

import torch

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.optimizer import make_optimizer
from retinanet.training.start import build_model


def prepare(workload: Workload, *, name: str, fused: bool) -> Prepared:
    """`name`: adam, sgd (with momentum) or lamb; not `fused` is torch's `foreach=False`."""
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter) * 1e-3
    momentum = 0.9 if name == "sgd" else 0.0
    optimizer = make_optimizer(model, name=name, learning_rate=1e-4, momentum=momentum, fused=fused)

    def run() -> dict[str, float]:
        optimizer.step()
        return {}

    return Prepared(run)
