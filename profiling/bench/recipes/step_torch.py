"""A training step of ours: the functions that `train.py` runs."""

from collections.abc import Iterator
from itertools import repeat

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.engines import PreparedTraining, autocast_forward, prepare_training
from retinanet.engine.optimizer import make_optimizer
from retinanet.training.loop import StepResult, require_finite, train_one_epoch
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
    prepared = training(workload, engine=engine, convolutions=convolutions, fused_adam=fused_adam)
    if not folded:
        plain = autocast_forward(prepared.model, precision="bf16")
        prepared = PreparedTraining(prepared.model, prepared.optimizer, plain)
    steps = steps_of(prepared, workload, focal_form=focal_form)
    return Prepared(lambda: {"loss": require_finite(next(steps)).loss})


def training(
    workload: Workload,
    *,
    engine: str = "torch",
    precision: str = "bf16",
    convolutions: str = "auto",
    fused_adam: bool = True,
) -> PreparedTraining:
    """Model and optimizer as an engine arranges them."""
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=fused_adam)
    return prepare_training(
        model, optimizer, engine=engine, precision=precision, convolutions=convolutions
    )


def steps_of(
    prepared: PreparedTraining, workload: Workload, *, focal_form: str = "auto"
) -> Iterator[StepResult]:
    """Steps on one batch, as many as are asked for."""
    return train_one_epoch(
        prepared,
        repeat(make_batch(workload)),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
        focal_form=focal_form,
    )
