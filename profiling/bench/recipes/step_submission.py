"""A training step through IPEX as in the only CPU submission to MLPerf Training (v3.0, Intel)."""

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.step_torch import LEARNING_RATE, steps_of
from profiling.bench.recipes.synthetic import make_weights
from profiling.bench.workload import Workload
from profiling.byte_counter import CurrentPhase
from retinanet.config import ModelConfig
from retinanet.engine.engines import PreparedTraining, autocast_forward
from retinanet.engine.ipex_engine import prepare_with_ipex
from retinanet.engine.optimizer import make_optimizer
from retinanet.training.loop import require_finite
from retinanet.training.start import build_model


def prepare(workload: Workload, *, main_cpus: tuple[int, ...] = ()) -> Prepared:
    """`ipex.optimize` without packed weights, its fused Adam, BF16 autocast, our loss.

    The submission's loss is a pass of C++ each way over a one-hot target, which moves more.
    """
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=False)
    model, optimizer = prepare_with_ipex(model, optimizer, precision="bf16", prepack=False)
    forward = autocast_forward(model, precision="bf16")
    phase = CurrentPhase()
    prepared = PreparedTraining(model, optimizer, forward)
    steps = steps_of(prepared, workload, main_cpus=main_cpus, phases=phase)
    return Prepared(lambda: {"loss": require_finite(next(steps)).loss}, phase=phase)
