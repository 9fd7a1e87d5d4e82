"""Collective operations of a run's ranks: equal weights, merged steps, averaged gradients."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import InputError
from data.dataset import Batch
from launch.process_group import ProcessGroup
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.folded_forward import RunningStatistics
from retinanet.engine.gradient_sync import GradientExchange, share_gradients
from retinanet.engine.kernel_calls import is_one_block
from retinanet.training.loop import (
    NO_PROFILER,
    StepProfiler,
    StepResult,
    accumulate_gradients,
    batch_losses,
)
from retinanet.training.train_state import trained_norms

Value = TypeVar("Value")


def share_weights(group: ProcessGroup, model: nn.Module, optimizer: Optimizer) -> None:
    """Give all ranks rank 0's weights, and its optimizer's state if it has one.

    So pretrained weights and checkpoints are read on one host alone.
    """
    if group.size == 1:
        return
    group.broadcast(model.state_dict().values())
    state = group.from_first(optimizer.state_dict)
    if not group.is_first and state["state"]:
        optimizer.load_state_dict(state)


def agree_on_weights(group: ProcessGroup, model: nn.Module) -> bool:
    """Make what trains bitwise equal on all ranks, rank 0's; return whether it was equal before.

    Averaged gradients are the same everywhere, so equal processors keep equal weights. On hosts of
    several kinds sums are rounded otherwise, and nothing else would ever bring them together.
    """
    if group.size == 1:
        return True
    trained = [value.detach() for value in model.parameters() if value.requires_grad]
    if len(set(group.all_gather(checksum_of(trained)))) == 1:
        return True
    group.broadcast(trained)
    return False


def checksum_of(tensors: Iterable[Tensor]) -> int:
    """Return a checksum of all bits, of any number format."""
    checksum = 0
    for tensor in tensors:
        # One block of memory is read as it lies, without a copy.
        is_block = is_one_block(tensor)
        flat = tensor.as_strided((tensor.numel(),), (1,)) if is_block else tensor.flatten()
        checksum = zlib.crc32(flat.view(torch.uint8).numpy().data, checksum)
    return checksum


def averaged_norms(group: ProcessGroup, model: nn.Module) -> dict[str, Tensor]:
    """Return the means over the ranks of running statistics of norms that train; all call it.

    Each rank has statistics of its own images. They are copies under the names in the `state_dict`;
    none for one rank, or where norms are constants.
    """
    norms = trained_norms(model) if group.size > 1 else {}
    copied = {name: values.clone() for name, values in norms.items()}
    # A mean of equal numbers may be rounded, and averaging twice must change nothing.
    if copied and len(set(group.all_gather(checksum_of(copied.values())))) > 1:
        group.average(copied.values())
    return copied


def average_norms(group: ProcessGroup, model: nn.Module) -> None:
    """Replace each rank's running statistics by their means over the ranks."""
    norms = trained_norms(model)
    for name, averaged in averaged_norms(group, model).items():
        norms[name].copy_(averaged)


def agreed_batches(group: ProcessGroup, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield this rank's batches; where a rank cannot read an image, raise the error on all.

    Else the others would wait for its gradients. Every rank has equally many batches.

    Raises:
        InputError: An image cannot be read.
    """
    stream = iter(batches)
    while True:
        error, batch = "", None
        try:
            batch = next(stream)
        except StopIteration:
            return
        except InputError as problem:
            error = str(problem)
        errors = list(filter(None, group.all_gather(error)))
        if errors:
            raise InputError(errors[0])
        assert batch is not None
        yield batch


SLOWEST = ("seconds", "data_seconds", "page_faults", "resident_mb", "peak_resident_mb")
"""Fields of a merged step that are those of the slowest or largest rank."""
JOINED = ("bad_images", "nonfinite", "notes")
"""Fields of a merged step that have those of all ranks."""


def merge_results(results: Sequence[StepResult]) -> StepResult:
    """Return one step of all ranks: losses of all their images, times of the slowest.

    Gradients are averages, so all have the same norm. Memory is that of the rank that has most. The
    exchange took what the last rank waited for it: the others also waited for that rank.
    """
    first = results[0]
    images = [result.images for result in results]
    weights = images if len(set(images)) > 1 else None  # products of equal ones may be rounded
    merged: dict[str, Any] = {
        "images": sum(images),
        "exchange_seconds": min(result.exchange_seconds for result in results),
        "losses": {
            name: fmean((result.losses[name] for result in results), weights)
            for name in first.losses
        },
    }
    for name in SLOWEST:
        merged[name] = max(getattr(result, name) for result in results)
    for name in JOINED:
        merged[name] = tuple(chain.from_iterable(getattr(result, name) for result in results))
    return replace(first, **merged)


def in_turn(group: ProcessGroup, make: Callable[[], Value]) -> Value:
    """Call `make` on rank 0 first, which writes files that the others then find.

    Rank 0 returns once all have called it: should it fail afterwards, it removes the run's folder,
    and no other rank may be at work there.
    """
    if not group.is_first:
        group.barrier()
    made = make()
    if group.is_first:
        group.barrier()
    group.barrier()
    return made


def make_exchange(
    group: ProcessGroup,
    prepared: PreparedTraining,
    *,
    backend: str,
    compress: str,
    focal_form: str,
    timeout_s: float,
    weight: float | None = None,
    profiler: StepProfiler = NO_PROFILER,
) -> GradientExchange | None:
    """Return what averages the gradients over the ranks of a group; None where there is one rank.

    All of them call it, with equal models. `backend` (`auto`, `shared`, `gloo` or `ccl`) and
    `compress` are the configuration's. A rank whose gradients are missing for `timeout_s` ends the
    job. `weight` is that of this rank in the average; None: all count alike.

    Raises:
        InputError: Shared memory is configured, and the ranks have none in common.
    """
    if group.size == 1:
        return None
    shared = None
    if group.is_on_one_host and (
        backend == "shared" or (backend == "auto" and group.backend != "ccl")
    ):
        parameters = prepared.model.parameters()
        shared = share_gradients(
            group.all_gather,
            rank=group.rank,
            values=sum(value.numel() for value in parameters if value.requires_grad),
            compress=compress == "bf16",
            timeout_s=timeout_s,
        )
    if backend == "shared" and shared is None:
        raise InputError(
            f"distributed.backend: shared: the ranks, on {', '.join(dict.fromkeys(group.hosts))}, "
            "see no memory in common; set distributed.backend=auto"
        )
    exchange = GradientExchange(
        prepared.model,
        partial(batch_losses, prepared, focal_form=focal_form, profiler=profiler),
        compress=compress,
        shared=shared,
        weight=weight,
        ranks=group.exchange,
    )
    if shared is None and group.size > 2:
        settle_buckets(exchange, prepared)
    return exchange


PASSES_UNTIL_SORTED = 2
"""Backward passes after which DDP has the order in which gradients become ready."""
SETTLING_SIDE = 128
"""Of the image for them. [pixels]"""


def settle_buckets(exchange: GradientExchange, prepared: PreparedTraining) -> None:
    """Make torch sort its buckets before the first step, not after the second.

    Over three and more ranks gloo adds a value's parts in an order that depends on its place in a
    bucket. So a resumed run would round its first steps otherwise than the run that was stopped.
    In shared memory the order is always that of the ranks.
    """
    prepared.model.train()
    statistics = RunningStatistics(prepared.model)
    statistics.keep()
    batch = dummy_batch(1, SETTLING_SIDE)
    for _ in range(PASSES_UNTIL_SORTED):
        accumulate_gradients(prepared, [batch], exchange=exchange)
        prepared.optimizer.zero_grad(set_to_none=True)
    statistics.put_back()


BOX = (0.2, 0.2, 0.6, 0.7)
"""The object of each image, in shares of its side. [xyxy]"""


def dummy_batch(images: int, size: int) -> Batch:
    """Return images of `size` × `size` pixels of noise, without use of torch's own generator."""
    generator = torch.Generator().manual_seed(0)
    shape = (images, 3, size, size)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    target = {"boxes": torch.tensor([BOX]) * size, "labels": torch.tensor([0])}
    return Batch(
        pixels.contiguous(memory_format=torch.channels_last),
        [target] * images,
        image_ids=[0] * images,
        original_sizes=[(size, size)] * images,
    )
