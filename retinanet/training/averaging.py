"""The averaging of gradients over ranks: by which way."""

from functools import partial

from torch import Tensor

from common.errors import InputError
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.config_sections import DistributedConfig
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.folded_forward import RunningStatistics
from retinanet.engine.gradient_sync import Averaging, GradientExchange, share_gradients
from retinanet.engine.host_gradients import average_over_hosts
from retinanet.training.batch_split import dummy_batch
from retinanet.training.loop import (
    NO_PROFILER,
    StepProfiler,
    accumulate_gradients,
    batch_losses,
)


def make_exchange(
    config: Config,
    prepared: PreparedTraining,
    *,
    group: ProcessGroup,
    weight: float | None = None,
    class_weights: Tensor | None = None,
    profiler: StepProfiler = NO_PROFILER,
) -> GradientExchange | None:
    """Return the exchange that averages gradients over the ranks of a group; None for one rank.

    All of them call it, with equal models. A rank whose gradients are missing for
    `distributed.timeout_s` ends the job. `weight` is this rank's weight in the average; None: equal
    weights. `class_weights` are those of the loss, see `focal_loss`.

    Raises:
        InputError: Shared memory is configured, but the ranks have none in common.
    """
    if group.size == 1:
        return None
    parameters = prepared.model.parameters()
    values = sum(value.numel() for value in parameters if value.requires_grad)
    averaging = choose_averaging(config.distributed, group, values=values)
    exchange = GradientExchange(
        prepared.model,
        partial(
            batch_losses,
            prepared,
            focal_form=config.engine.focal_loss,
            class_weights=class_weights,
            profiler=profiler,
        ),
        compress=config.distributed.compress,
        averaging=averaging,
        weight=weight,
        ranks=group.exchange,
    )
    if group.size > 2 and (averaging is None or not averaging.has_fixed_order):
        settle_buckets(exchange, prepared)
    return exchange


def choose_averaging(
    settings: DistributedConfig, group: ProcessGroup, *, values: int
) -> Averaging | None:
    """Return how several ranks average `values` gradients; None: by torch's process group.

    All of them call it. Raises InputError as `make_exchange`.
    """
    averaging: Averaging | None = None
    backend, compress = settings.backend, settings.compress == "bf16"
    if group.is_on_one_host and backend in ("auto", "shared"):
        averaging = share_gradients(
            group.all_gather,
            rank=group.rank,
            values=values,
            compress=compress,
            timeout_s=settings.timeout_s,
        )
    elif backend == "mpi" or (backend in ("auto", "gloo") and not group.is_on_one_host):
        averaging = average_over_hosts(
            group, values=values, compress=compress, timeout_s=settings.timeout_s
        )
    if backend == "shared" and averaging is None:
        raise InputError(
            f"distributed.backend: shared: the ranks, on {', '.join(dict.fromkeys(group.hosts))}, "
            "have no shared memory; set distributed.backend=auto"
        )
    return averaging


PASSES_UNTIL_SORTED = 2
"""Backward passes after which DDP has the order in which gradients become ready."""
SETTLING_SIDE = 128  # Side of the image for them. [pixels]


def settle_buckets(exchange: GradientExchange, prepared: PreparedTraining) -> None:
    """Make DDP rebuild its buckets before the first step, not after the second one.

    With three or more summands, an all-reduce of gloo or MPI adds a value in an order that depends
    on its place in a bucket. A resumed run would therefore round its first steps differently from
    the uninterrupted run. Shared memory always sums in the order of the ranks, an exchange in BF16
    in that of the hosts, and two summands have only one order.
    """
    prepared.model.train()
    statistics = RunningStatistics(prepared.model)
    statistics.keep()
    batch = dummy_batch(1, (SETTLING_SIDE, SETTLING_SIDE))
    # Gradients, and the running statistics that the passes change, are discarded.
    for _ in range(PASSES_UNTIL_SORTED):
        accumulate_gradients(prepared, [batch], exchange=exchange)
        prepared.optimizer.zero_grad(set_to_none=True)
    statistics.put_back()
