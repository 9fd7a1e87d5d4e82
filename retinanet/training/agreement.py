"""What the ranks of a run agree on: weights, each step's numbers, errors, running statistics."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from data.dataset import Batch
from launch.group.process_group import ProcessGroup
from retinanet.engine.layout import is_one_block
from retinanet.errors import InputError
from retinanet.training.loop import StepResult
from retinanet.training.rank_states import trained_norms

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
    """See that what trains is equal on all ranks, to the last bit; where not, take rank 0's.

    Averaged gradients are the same everywhere, so equal processors keep equal weights. On hosts of
    several kinds sums are rounded otherwise, and nothing else would ever bring them together.

    Returns:
        Whether they were equal.
    """
    if group.size == 1:
        return True
    trained = [one.detach() for one in model.parameters() if one.requires_grad]
    if len(set(group.all_gather(checksum_of(trained)))) == 1:
        return True
    group.broadcast(trained)
    return False


def checksum_of(tensors: Iterable[Tensor]) -> int:
    """One number of all bits."""
    checksum = 0
    for tensor in tensors:
        checksum = zlib.crc32(bytes_of(tensor), checksum)
    return checksum


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's memory, of any number format, without a copy where it is one block."""
    flat = tensor.as_strided((tensor.numel(),), (1,)) if is_one_block(tensor) else tensor.flatten()
    return flat.view(torch.uint8).numpy().data


def averaged_norms(group: ProcessGroup, model: nn.Module) -> dict[str, Tensor]:
    """Means over the ranks of the running statistics of norms that train; all ranks call it.

    Each rank's own are of its own images.

    Returns:
        Copies under the names in the `state_dict`; none for one rank, or where norms are constants.
    """
    own = trained_norms(model) if group.size > 1 else {}
    if not own:
        return {}
    copied = {name: one.clone() for name, one in own.items()}
    # A mean of equal numbers may be rounded, and averaging twice must change nothing.
    if len(set(group.all_gather(checksum_of(copied.values())))) > 1:
        group.average(copied.values())
    return copied


def average_norms(group: ProcessGroup, model: nn.Module) -> None:
    """Put the means over the ranks in the place of each rank's own running statistics."""
    own = trained_norms(model)
    for name, averaged in averaged_norms(group, model).items():
        own[name].copy_(averaged)


def agreed_batches(group: ProcessGroup, batches: Iterable[Batch]) -> Iterator[Batch]:
    """This rank's batches; where a rank cannot read an image, the error is raised on all.

    Else the others would wait for its gradients. Every rank has as many batches.

    Raises:
        InputError: An image cannot be read.
    """
    stream = iter(batches)
    while True:
        error = ""
        batch = None
        try:
            batch = next(stream)
        except StopIteration:
            return
        except InputError as problem:
            error = str(problem)
        errors = [one for one in group.all_gather(error) if one]
        if errors:
            raise InputError(errors[0])
        assert batch is not None
        yield batch


def merged(results: Sequence[StepResult]) -> StepResult:
    """One step of all ranks: losses of all their images, times of the slowest.

    Gradients are averages, so all have the same norm. Memory is that of the rank that has most. The
    exchange took what the last rank waited for it: the others also waited for that rank.
    """
    first = results[0]
    images = [one.images for one in results]
    weights = images if len(set(images)) > 1 else None  # products of equal ones may be rounded
    return replace(
        first,
        losses={
            name: fmean((one.losses[name] for one in results), weights) for name in first.losses
        },
        images=sum(images),
        seconds=max(one.seconds for one in results),
        data_seconds=max(one.data_seconds for one in results),
        exchange_seconds=min(one.exchange_seconds for one in results),
        page_faults=max(one.page_faults for one in results),
        resident_mb=max(one.resident_mb for one in results),
        peak_resident_mb=max(one.peak_resident_mb for one in results),
        bad_images=tuple(problem for one in results for problem in one.bad_images),
        nonfinite=tuple(found for one in results for found in one.nonfinite),
        notes=tuple(note for one in results for note in one.notes),
    )


def in_turn(group: ProcessGroup, make: Callable[[], Value]) -> Value:
    """Make something on rank 0 first, such as files that the others then find.

    Rank 0 returns once all have made it: should it fail afterwards, it removes the run's folder,
    and no other rank may be at work there.
    """
    if not group.is_first:
        group.barrier()
    made = make()
    if group.is_first:
        group.barrier()
    group.barrier()
    return made
