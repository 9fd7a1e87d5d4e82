"""A training step of ours: the functions that `train.py` runs."""

from itertools import repeat

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.engines import prepare_training
from retinanet.engine.optimizer import adam
from retinanet.training.loop import train_one_epoch
from retinanet.training.start import build_model


def prepare(workload: Workload) -> Prepared:
    """BF16, Adam, frozen norms, three trainable layers."""
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    optimizer = adam(model, learning_rate=1e-4)
    steps = train_one_epoch(
        prepare_training(model, optimizer, engine="torch", precision="bf16"),
        repeat(make_batch(workload)),
        learning_rate=lambda _: 1e-4,
        first_step=0,
    )
    return Prepared(lambda: {"loss": next(steps).loss})
