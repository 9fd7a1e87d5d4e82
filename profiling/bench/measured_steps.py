"""Timed training steps of a rank: MLPerf's model on the data of a configuration.

The second part measures where the time of a run goes: oneDNN's primitives, torch's operators, our
kernels, and the bytes that they move.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile

from common.console import make_console, redirected
from common.errors import InputError
from common.streams import OUTPUT
from data.dataset import Batch
from launch.pinning import RankContext
from launch.process_group import ProcessGroup, joined
from profiling.bench.job import MeasuredJob, RankSteps
from profiling.bench.recipes.step import make_weights
from profiling.bench.variant import Prepared, Workload
from profiling.capture.backends import verbose
from profiling.capture.byte_counter import ByteCounter
from profiling.onednn_log.log import read_logs
from retinanet.config import Config
from retinanet.config_sections import ModelConfig
from retinanet.engine.engines import PreparedTraining, chosen_engine, prepare_training
from retinanet.engine.gradient_sync import GradientExchange
from retinanet.engine.kernel_calls import KernelCall, listening
from retinanet.training.agreement import agreed_batches
from retinanet.training.averaging import make_exchange
from retinanet.training.batch_split import settle_batches
from retinanet.training.build import build_model, build_optimizer
from retinanet.training.data import Loading, open_run_data
from retinanet.training.loop import StepOptions, StepResult, require_finite, train_one_epoch

RATE = 1e-6  # A learning rate at which random weights stay what they are


def measure_steps(
    config: Config, job: MeasuredJob, *, place: RankContext, report: Callable[[object], None]
) -> None:
    """Join the other ranks, and time steps with them as a training takes them.

    On rank 0, `report` gets the number of each step, and at the end what all have measured.

    Raises:
        InputError: The data is not there, or does not match the configuration.
    """
    with joined(place, timeout_s=config.distributed.timeout_s) as group:
        settings = config.model if job.own_model else ModelConfig()
        loading, prepared = open_training(config, job.scenes, settings, group, place=place)
        local_ranks = place.ranks.local_size
        batches = settle_batches(config, prepared, group=group, local_ranks=local_ranks)
        exchange = make_exchange(config, prepared, group=group, weight=batches.weight(group.rank))
        loading.batches.split = batches.images

        # An epoch of a small data set has fewer batches than the job has steps.
        def endless_batches() -> Iterator[Batch]:
            for epoch in count():
                loading.batches.set_position(epoch)
                yield from loading.train

        steps = train_one_epoch(
            prepared,
            agreed_batches(group, endless_batches()),
            learning_rate=lambda step: RATE,
            first_step=0,
            options=StepOptions(
                focal_form=config.engine.focal_loss, main_cpus=place.pinned.share.main_cpus
            ),
            exchange=exchange,
        )
        measured = time_steps(steps, job, exchange, group=group, report=report)
        ranks = group.gather(measured, RankSteps)
        if ranks is not None:
            report({"ranks": [asdict(rank) for rank in ranks]})


def open_training(
    config: Config, scenes: Path, settings: ModelConfig, group: ProcessGroup, *, place: RankContext
) -> tuple[Loading, PreparedTraining]:
    """Open the data, then make the model of `settings` with weights from random numbers."""
    console = make_console(quiet=not group.is_first)
    data = open_run_data(config, scenes_folder=scenes, console=console, group=group)
    cores = place.pinned.share.loader_cpus
    loading = Loading(data, config, cores=cores, rank=group.rank, ranks=group.size)
    num_classes = data.classes.num_classes
    model = build_model(settings, num_classes=num_classes, weights=None)
    # Frozen norms do not normalize: with plain random weights, activations would grow
    # with each block.
    if settings.norm == "frozen":
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


def time_steps(
    steps: Iterator[StepResult],
    job: MeasuredJob,
    exchange: GradientExchange | None,
    *,
    group: ProcessGroup,
    report: Callable[[object], None],
) -> RankSteps:
    """Time steps after a warm-up; all ranks begin each step together.

    Otherwise a rank that was ready early would spend the next step's exchange waiting for the
    others. With `alternate`, each counted step is followed by one whose gradients stay with their
    rank.
    """

    def step(*, held_back: bool = False) -> StepResult:
        group.barrier()
        with exchange.held_back() if exchange and held_back else nullcontext():
            result = require_finite(next(steps))
        if group.is_first:
            report({"step": result.step})
        return result

    for _ in range(job.warm_up):
        step()
    results, held_back = [], []
    for _ in range(job.steps):
        results.append(step())
        if exchange and job.alternate:
            held_back.append(step(held_back=True))
    return RankSteps(
        rank=group.rank,
        host=group.hosts[group.rank],
        seconds=[result.seconds for result in results],
        data_seconds=[result.data_seconds for result in results],
        forward_seconds=[result.forward_seconds for result in results],
        exchange_seconds=[result.exchange_seconds for result in results],
        held_back_seconds=[result.seconds for result in held_back],
        images=results[0].images,
        way=exchange.way if exchange else "none",
        notes=list(group.notes),
    )


WINOGRAD = ("_WinogradConvolution", "_WinogradConvolutionBackward")
"""Names of the autograd function in retinanet/engine/winograd.py, forward and backward."""


def primitive_seconds(run: Callable[[], object]) -> dict[str, Any]:
    """Run once; return the fields of `profiling.bench.results.Primitives`."""
    by_kind: dict[str, float] = {}
    seconds = 0.0

    def timed_run() -> None:
        nonlocal seconds
        # Of the run alone: the profiler takes as long again to start and to end.
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start

    kernels: dict[str, float] = defaultdict(float)

    def add(call: KernelCall) -> None:
        kernels[call.kernel] += call.seconds

    with listening(add):
        events = watched(lambda: by_kind.update(onednn_seconds(timed_run)))
    # torch's profiler has microseconds.
    winograd = sum(event.cpu_time_total for event in events if event.key in WINOGRAD) / 1e6
    return {
        "seconds": seconds,
        "by_kind": by_kind,
        "winograd_seconds": winograd,
        "kernel_seconds": kernels,
    }


def onednn_seconds(run: Callable[[], object]) -> dict[str, float]:
    """Run once; return seconds by kind of primitive, such as `convolution backward_data`.

    Empty where nothing ran in oneDNN.
    """
    with tempfile.NamedTemporaryFile() as log:
        log.write(onednn_lines(run).encode())
        log.flush()
        # The reader of logs rejects a file without any execution of a primitive.
        try:
            calls = read_logs([Path(log.name)]).calls()
        except InputError:
            return {}
    totals: dict[str, float] = defaultdict(float)
    for problem, executions in calls.items():
        # oneDNN logs the direction of reorders and other kinds without one as `undef`.
        name = f"{problem.kind} {problem.direction}".removesuffix(" undef")
        totals[name] += executions.total_ms / 1000
    return dict(totals)


def onednn_lines(run: Callable[[], object]) -> str:
    """Run once; return oneDNN's log of it."""
    # oneDNN prints from C to descriptor 1, below Python's sys.stdout.
    with tempfile.TemporaryFile() as file:
        with redirected(OUTPUT, file.fileno()), verbose():
            run()
        file.seek(0)
        return file.read().decode("utf-8", errors="replace")


def watched(run: Callable[[], object]) -> EventList:
    """Run once under torch's profiler; return each operator's times, summed over its calls."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return profiler.key_averages()


COMPILED = "compiled graphs"
"""Stands as phase and operator for everything that torch.compile has compiled."""
CALLED_IN_GRAPHS = ("aten::convolution", "aten::mm", "aten::addmm", "mkldnn::")
"""Beginnings of operators that compiled graphs call, and that are in inductor's count."""


def bytes_of_run(prepared: Prepared) -> list[tuple[str, str, int, int, int]]:
    """Run once; return phase, operator, calls, bytes read and written, the largest first.

    The traffic of compiled graphs is what inductor counts for them, read and written together, and
    is given as read: their fused kernels are no operators.
    """
    with ByteCounter(prepared.phase) as counter:
        prepared.run()
    rows = [
        (call.phase, call.operator, moved.calls, moved.read, moved.written)
        for call, moved in counter.moved.items()
    ]
    if prepared.compiled_bytes is not None:
        # Inductor has counted these calls of its graphs already.
        rows = [row for row in rows if not row[1].startswith(CALLED_IN_GRAPHS)]
        rows.append((COMPILED, COMPILED, 1, prepared.compiled_bytes(), 0))
    return sorted(rows, key=lambda row: -(row[3] + row[4]))
