"""A step of IPEX's LAMB over the detector's weights, the paper's own comparison."""

import torch

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.ipex_engine import import_ipex
from retinanet.training.start import build_model


def prepare(workload: Workload, *, fused: bool) -> Prepared:
    """`fused`: IPEX's kernel in C++, or its Python, tensor by tensor."""
    ipex = import_ipex()
    from intel_extension_for_pytorch.optim._lamb import Lamb  # noqa: PLC0415

    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None).train()
    model.load_state_dict(make_weights(workload))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Its own option `fused` is read by nobody (2.8.0): `optimize` puts the kernel in.
    _, optimizer = ipex.optimize(
        model,
        optimizer=Lamb(trained, lr=1e-4),
        inplace=True,
        weights_prepack=False,
        fuse_update_step=fused,
    )
    for parameter in trained:
        parameter.grad = torch.randn_like(parameter) * 1e-3

    def run() -> dict[str, float]:
        optimizer.step()
        return {}

    return Prepared(run)
