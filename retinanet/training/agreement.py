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
    checksum = 0
    for tensor in trained:
        checksum = zlib.crc32(bytes_of(tensor), checksum)
    if len(set(group.all_gather(checksum))) == 1:
        return True
    group.broadcast(trained)
    return False


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's memory, of any number format, without a copy where it is one block."""
    flat = tensor.as_strided((tensor.numel(),), (1,)) if is_one_block(tensor) else tensor.flatten()
    return flat.view(torch.uint8).numpy().data


def average_norms(group: ProcessGroup, model: nn.Module) -> None:
    """Average the running statistics of norms that train: each rank's are of its own images."""
    if group.size == 1:
        return
    norms = [one for one in model.modules() if isinstance(one, nn.BatchNorm2d)]
    statistics = ((one.running_mean, one.running_var) for one in norms)
    group.average(one for pair in statistics for one in pair if one is not None)


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

    Memory is that of the rank that has most. The exchange took what the last rank waited for it:
    the others also waited for that rank.
    """
    first = results[0]
    return replace(
        first,
        losses={name: fmean(one.losses[name] for one in results) for name in first.losses},
        images=sum(one.images for one in results),
        seconds=max(one.seconds for one in results),
        data_seconds=max(one.data_seconds for one in results),
        exchange_seconds=min(one.exchange_seconds for one in results),
        page_faults=max(one.page_faults for one in results),
        resident_mb=max(one.resident_mb for one in results),
        peak_resident_mb=max(one.peak_resident_mb for one in results),
        bad_images=tuple(problem for one in results for problem in one.bad_images),
    )


def in_turn(group: ProcessGroup, make: Callable[[], Value]) -> Value:
    """Make something on rank 0 first, such as files that the others then find."""
    if not group.is_first:
        group.barrier()
        return make()
    made = make()
    group.barrier()
    return made
