"""The way that the gradients of a run's ranks take."""

from functools import partial

import torch
from torch import nn

from data.dataset import Batch
from launch.group.process_group import ProcessGroup
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.gradient_exchange import GradientExchange
from retinanet.engine.running_statistics import RunningStatistics
from retinanet.engine.shared_gradients import SharedGradients, share_gradients
from retinanet.errors import InputError
from retinanet.training.loop import accumulate_gradients, batch_losses
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
    phases: Phases = UNWATCHED,
) -> GradientExchange | None:
    """What averages the gradients over the ranks; None where there is one.

    Args:
        group: The ranks; all of them call this.
        prepared: The model as its engine runs it, equal on all ranks.
        backend: `auto`, `shared`, `gloo` or `ccl`, as in the configuration.
        compress: `none` or `bf16`.
        focal_form: See `focal_loss`.
        timeout_s: A rank whose gradients are missing for longer ends the job.
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
    side = SETTLING_SIDE
    pixels = torch.zeros(1, 3, side, side, dtype=torch.uint8)
    target = {"boxes": torch.tensor([[8.0, 8.0, 72.0, 72.0]]), "labels": torch.tensor([0])}
    images = pixels.contiguous(memory_format=torch.channels_last)
    batch = Batch(images, [target], image_ids=[0], original_sizes=[(side, side)])
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
