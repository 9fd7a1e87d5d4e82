"""The way that the gradients of a run's ranks take."""

from functools import partial

from torch import nn

from launch.group.process_group import ProcessGroup
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.gradient_exchange import GradientExchange
from retinanet.engine.running_statistics import RunningStatistics
from retinanet.engine.shared_gradients import SharedGradients, share_gradients
from retinanet.errors import InputError
from retinanet.training.loop import accumulate_gradients, batch_losses
from retinanet.training.noise import noise
from retinanet.training.phases import UNWATCHED, Phases

PASSES_UNTIL_SORTED = 2
"""Backward passes after which DDP has the order in which gradients become ready."""
SETTLING_SIDE = 128
"""Of the image for them. [pixels]"""


def make_exchange(
    group: ProcessGroup,
    prepared: PreparedTraining,
    *,
    backend: str,
    compress: str,
    focal_form: str,
    timeout_s: float,
    weight: float | None = None,
    phases: Phases = UNWATCHED,
) -> GradientExchange | None:
    """What averages the gradients over the ranks; None where there is one.

    Args:
        group: The ranks that average; all of them call this.
        prepared: The model as its engine runs it, equal on all ranks.
        backend: `auto`, `shared`, `gloo` or `ccl`, as in the configuration.
        compress: `none` or `bf16`.
        focal_form: See `focal_loss`.
        timeout_s: A rank whose gradients are missing for longer ends the job.
        weight: Of this rank in the average; None: all count alike.
        phases: Is told where the forward pass and the losses are.

    Raises:
        InputError: Shared memory is asked for, and the ranks have none in common.
    """
    if group.size == 1:
        return None
    shared = None
    if backend == "shared" or (backend == "auto" and group.backend != "ccl"):
        shared = share_on_one_host(
            group, prepared.model, compress=compress == "bf16", timeout_s=timeout_s
        )
    if backend == "shared" and shared is None:
        raise InputError(
            f"distributed.backend: shared: the ranks, on {', '.join(dict.fromkeys(group.hosts))}, "
            "see no memory in common; set distributed.backend=auto"
        )
    exchange = GradientExchange(
        prepared.model,
        partial(batch_losses, prepared, focal_form=focal_form, phases=phases),
        compress=compress,
        shared=shared,
        weight=weight,
        ranks=group.exchange,
    )
    if shared is None and group.size > 2:
        settle_buckets(exchange, prepared)
    return exchange


def settle_buckets(exchange: GradientExchange, prepared: PreparedTraining) -> None:
    """Have torch sort its buckets anew before the first step, not after the second.

    Over three and more ranks gloo adds a value's parts in an order that depends on its place in a
    bucket. So a resumed run would round its first steps otherwise than the run that was stopped
    had done. In shared memory the order is always that of the ranks.
    """
    prepared.model.train()
    statistics = RunningStatistics(prepared.model)
    statistics.keep()
    batch = noise(1, SETTLING_SIDE)
    for _ in range(PASSES_UNTIL_SORTED):
        accumulate_gradients(prepared, [batch], exchange=exchange)
        prepared.optimizer.zero_grad(set_to_none=True)
    statistics.put_back()


def share_on_one_host(
    group: ProcessGroup, model: nn.Module, *, compress: bool, timeout_s: float
) -> SharedGradients | None:
    """The way through memory; None where ranks are on several hosts, or cannot share any."""
    if not group.is_on_one_host:
        return None
    return share_gradients(
        group.all_gather,
        rank=group.rank,
        values=sum(one.numel() for one in model.parameters() if one.requires_grad),
        compress=compress,
        timeout_s=timeout_s,
    )
