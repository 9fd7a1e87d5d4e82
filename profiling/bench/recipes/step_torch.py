"""A training step of ours: the functions that `train.py` runs."""

from itertools import repeat

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.engines import PreparedTraining, autocast_forward, prepare_training
from retinanet.engine.optimizer import make_optimizer
from retinanet.training.loop import train_one_epoch
from retinanet.training.start import build_model

LEARNING_RATE = 1e-4


def prepare(
    workload: Workload,
    *,
    engine: str = "torch",
    folded: bool = True,
    convolutions: str = "auto",
    fused_adam: bool = True,
    focal_form: str = "auto",
) -> Prepared:
    """BF16, Adam, frozen norms, three trainable layers.

    `folded`, `convolutions`, `fused_adam` and `focal_form` take one thing away from the engine.
    """
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=fused_adam)
    prepared = prepare_training(
        model, optimizer, engine=engine, precision="bf16", convolutions=convolutions
    )
    if not folded:
        plain = autocast_forward(prepared.model, precision="bf16")
        prepared = PreparedTraining(prepared.model, prepared.optimizer, plain)
    steps = train_one_epoch(
        prepared,
        repeat(make_batch(workload)),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
        focal_form=focal_form,
    )
    return Prepared(lambda: {"loss": next(steps).loss})
