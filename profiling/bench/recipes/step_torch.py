"""A training step of ours: the functions that `train.py` runs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

from torch.optim import Adam

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.compiled import compile_parts, compiled_bytes
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.workload import Workload
from profiling.byte_counter import CurrentPhase
from retinanet.config import ModelConfig
from retinanet.engine.engines import PreparedTraining, autocast_forward, prepare_training
from retinanet.engine.optimizer import make_optimizer
from retinanet.training.loop import StepResult, require_finite, train_one_epoch
from retinanet.training.phases import UNWATCHED, Phases
from retinanet.training.start import build_model

LEARNING_RATE = 1e-4


def prepare(
    workload: Workload,
    *,
    engine: str = "torch",
    folded: bool = True,
    convolutions: str = "auto",
    fused_adam: bool = True,
    torch_adam: bool = False,
    compiled: bool = False,
    focal_form: str = "auto",
    main_cpus: tuple[int, ...] = (),
) -> Prepared:
    """BF16, Adam, frozen norms, three trainable layers.

    `folded`, `convolutions`, `fused_adam` and `focal_form` take one thing away from the engine;
    `torch_adam` puts torch's fused Adam in the place of ours, `compiled` torch.compile of the
    model's own modules in that of our forward pass; `main_cpus` is where the main thread computes.
    """
    prepared = training(workload, engine=engine, convolutions=convolutions, fused_adam=fused_adam)
    if torch_adam:
        weights = [weight for weight in prepared.model.parameters() if weight.requires_grad]
        fused = Adam(weights, lr=LEARNING_RATE, fused=True)
        prepared = replace(prepared, optimizer=fused)
    if compiled:
        compile_parts(prepared.model)
    if compiled or not folded:
        plain = autocast_forward(prepared.model, precision="bf16")
        prepared = replace(prepared, forward=plain)
    phase = CurrentPhase()
    steps = steps_of(prepared, workload, focal_form=focal_form, main_cpus=main_cpus, phases=phase)
    return Prepared(
        lambda: {"loss": require_finite(next(steps)).loss},
        phase=phase,
        compiled_bytes=compiled_bytes if compiled else None,
    )


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
    prepared: PreparedTraining,
    workload: Workload,
    *,
    focal_form: str = "auto",
    main_cpus: tuple[int, ...] = (),
    phases: Phases = UNWATCHED,
) -> Iterator[StepResult]:
    """Steps on one batch, as many as are asked for."""
    return train_one_epoch(
        prepared,
        repeat(make_batch(workload)),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
        focal_form=focal_form,
        main_cpus=main_cpus,
        phases=phases,
    )
