"""A few training steps of a rank, timed: MLPerf's model on the data of a configuration.

The second part measures where the time of a run goes: oneDNN's primitives, torch's operators, our
kernels, and the bytes that they move.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path

from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile

from common.console import OUTPUT, make_console, redirected
from common.errors import InputError
from data.dataset import Batch
from launch.pinning import RankContext
from launch.process_group import ProcessGroup
from profiling.bench.job import RankSteps
from profiling.bench.recipes.step import make_weights
from profiling.bench.variant import Prepared, Workload
from profiling.capture.backends import verbose
from profiling.capture.byte_counter import ByteCounter
from profiling.onednn_log.log import read_logs
from retinanet.config import Config, ModelConfig
from retinanet.engine.engines import PreparedTraining, chosen_engine, prepare_training
from retinanet.engine.gradient_sync import GradientExchange
from retinanet.engine.kernel_calls import KernelCall, listening
from retinanet.training.build import build_model, build_optimizer
from retinanet.training.data import Loading, open_run_data
from retinanet.training.distributed import agreed_batches
from retinanet.training.loop import StepResult, require_finite, train_one_epoch

RATE = 1e-6
"""A learning rate at which random weights stay what they are."""


def open_training(
    config: Config,
    scenes: Path,
    *,
    model_settings: ModelConfig,
    group: ProcessGroup,
    place: RankContext,
) -> tuple[Loading, PreparedTraining]:
    """Open the data, then make the model with weights from random numbers.

    Args:
        config: Everything but the model.
        scenes: Folder for drawn scenes.
        model_settings: The model's; MLPerf's recipe has `ModelConfig()`.
        group: The ranks.
        place: Of this one.

    Raises:
        InputError: The data is not there, or not what the configuration says.
    """
    console = make_console(quiet=not group.is_first)
    data = open_run_data(config, scenes_folder=scenes, console=console, group=group)
    loading = Loading(
        data,
        batch_size=config.training.batch_size,
        evaluation_batch_size=config.evaluation.batch_size,
        seed=config.run.seed,
        workers=config.data.workers,
        cores=place.pinned.share.loader_cpus,
        bad_image_limit=config.data.bad_image_limit,
        rank=group.rank,
        ranks=group.size,
    )
    num_classes = data.classes.num_classes
    model = build_model(model_settings, num_classes=num_classes, weights=None)
    if model_settings.norm == "frozen":
        model.load_state_dict(make_weights(Workload(classes=num_classes)))
    engine = chosen_engine(config.engine.name)
    prepared = prepare_training(
        model,
        build_optimizer(config.training, model, engine=engine),
        engine=engine,
        precision=config.engine.precision,
        convolutions=config.engine.convolutions,
    )
    return loading, prepared


def steps_without_end(
    config: Config,
    loading: Loading,
    prepared: PreparedTraining,
    *,
    exchange: GradientExchange | None,
    group: ProcessGroup,
    main_cpus: tuple[int, ...] = (),
) -> Iterator[StepResult]:
    """Yield training steps as `train.py` takes them."""
    return train_one_epoch(
        prepared,
        agreed_batches(group, endless_batches(loading)),
        learning_rate=lambda step: RATE,
        first_step=0,
        focal_form=config.engine.focal_loss,
        exchange=exchange,
        main_cpus=main_cpus,
    )


def endless_batches(loading: Loading) -> Iterator[Batch]:
    """Yield batches, epoch after epoch."""
    for epoch in count():
        loading.batches.set_position(epoch)
        yield from loading.train


def measure(
    steps: Iterator[StepResult],
    *,
    exchange: GradientExchange | None,
    group: ProcessGroup,
    warm_up: int,
    counted: int,
    alternate: bool,
    report_step: Callable[[int], None],
) -> RankSteps:
    """Time steps, each of which all ranks begin together.

    Otherwise a rank that was ready early would spend the next step's exchange waiting for the
    others.

    Args:
        steps: Without end.
        exchange: Of gradients, where there are several ranks.
        group: The ranks.
        warm_up: Steps that are not counted.
        counted: Steps after them.
        alternate: Whether each counted step is followed by one whose gradients stay with their
            rank.
        report_step: Called with each step's number.
    """

    def step(*, held_back: bool = False) -> StepResult:
        group.barrier()
        with exchange.held_back() if exchange and held_back else nullcontext():
            result = require_finite(next(steps))
        report_step(result.step)
        return result

    for _ in range(warm_up):
        step()
    counted_steps, between = [], []
    for _ in range(counted):
        counted_steps.append(step())
        if exchange and alternate:
            between.append(step(held_back=True))
    return RankSteps(
        rank=group.rank,
        host=group.hosts[group.rank],
        seconds=[result.seconds for result in counted_steps],
        data_seconds=[result.data_seconds for result in counted_steps],
        forward_seconds=[result.forward_seconds for result in counted_steps],
        exchange_seconds=[result.exchange_seconds for result in counted_steps],
        held_back_seconds=[result.seconds for result in between],
        images=counted_steps[0].images,
        way=exchange.way if exchange else "none",
        notes=list(group.notes),
    )


def onednn_seconds(run: Callable[[], object]) -> dict[str, float]:
    """Run once: seconds by kind of primitive, such as `convolution backward_data` or `reorder`."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "onednn.log"
        log.write_text(onednn_lines(run), encoding="utf-8")
        return seconds_by_kind(log)


def onednn_lines(run: Callable[[], object]) -> str:
    """Run once: oneDNN's log of it."""
    # oneDNN prints from C to descriptor 1, below Python's sys.stdout.
    with tempfile.TemporaryFile() as file:
        with redirected(OUTPUT, file.fileno()), verbose():
            run()
        file.seek(0)
        return file.read().decode("utf-8", errors="replace")


def seconds_by_kind(log: Path) -> dict[str, float]:
    """Sums of a log; empty where nothing ran in oneDNN."""
    try:
        calls = read_logs([log]).calls()
    except InputError:
        return {}
    totals: dict[str, float] = defaultdict(float)
    for problem, one in calls.items():
        name = f"{problem.kind} {problem.direction}".removesuffix(" undef")
        totals[name] += one.total_ms / 1000
    return dict(totals)


WINOGRAD = ("_WinogradConvolution", "_WinogradConvolutionBackward")
"""Names of the autograd function in retinanet/engine/winograd.py, forward and backward."""


def operator_seconds(run: Callable[[], object]) -> dict[str, float]:
    """Run once under torch's profiler: each operator's own time, the costliest first."""
    events = sorted(watched(run), key=lambda event: -event.self_cpu_time_total)
    return {f"{event.key} x{event.count}": event.self_cpu_time_total / 1e6 for event in events}


def winograd_seconds(run: Callable[[], object]) -> float:
    """Run once under torch's profiler: seconds inside our own convolutions."""
    return sum(event.cpu_time_total for event in watched(run) if event.key in WINOGRAD) / 1e6


@contextmanager
def kernel_seconds() -> Iterator[dict[str, float]]:
    """Add up the seconds in kernels of csrc, by name, while the context lasts."""
    found: dict[str, float] = {}

    def add(call: KernelCall) -> None:
        found[call.kernel] = found.get(call.kernel, 0.0) + call.seconds

    with listening(add):
        yield found


def watched(run: Callable[[], object]) -> EventList:
    """Run once under torch's profiler: each operator's times, summed over its calls."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return profiler.key_averages()


COMPILED = "compiled graphs"
"""Stands as phase and operator for all that torch.compile has made one."""

CALLED_IN_GRAPHS = ("aten::convolution", "aten::mm", "aten::addmm", "mkldnn::")
"""Beginnings of operators that compiled graphs call, and that are in inductor's count."""

Row = tuple[str, str, int, int, int]
"""Phase, operator, calls, bytes read, bytes written."""


def bytes_of_run(prepared: Prepared) -> list[Row]:
    """Run once and count, the largest first.

    The traffic of compiled graphs is what inductor counts of them, read and written together, and
    is given as read: their fused kernels are no operators.
    """
    phase = prepared.phase
    with ByteCounter(lambda: phase.name if phase is not None else "") as counter:
        prepared.run()
    rows: list[Row] = [
        (call.phase, call.operator, moved.calls, moved.read, moved.written)
        for call, moved in counter.moved.items()
    ]
    if prepared.compiled_bytes is not None:
        rows = [row for row in rows if not row[1].startswith(CALLED_IN_GRAPHS)]
        rows.append((COMPILED, COMPILED, 1, prepared.compiled_bytes(), 0))
    return sorted(rows, key=lambda row: -(row[3] + row[4]))
