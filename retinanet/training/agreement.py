"""Agreement between the ranks of a run: equal settings and data, weights and states, one error."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import InputError
from data.annotations import Annotations
from data.dataset import Batch
from launch.process_group import ProcessGroup
from retinanet.config import Config, marked_settings
from retinanet.config_types import Hosts
from retinanet.engine.kernel_calls import is_one_block
from retinanet.training.checkpoint import load_optimizer, optimizer_tensors
from retinanet.training.ema import WeightAverage
from retinanet.training.loop import StepResult
from retinanet.training.train_state import AVERAGE, RankState, number_statistics, rank_states

Value = TypeVar("Value")


def require_equal_settings(group: ProcessGroup, config: Config) -> None:
    """Refuse to train with other settings on another rank, of a file that its host has of its own.

    Raises:
        InputError: On all ranks; names a setting, both values and both hosts.
    """
    settings = {
        name: value
        for name, value, mark in marked_settings(config, Hosts)
        if mark is not Hosts.MAY_DIFFER
    }
    firsts = group.from_first(lambda: settings, dict[str, Any])
    problems = (
        f"{name}: is {value} for {group.place_of(group.rank)}, but {firsts.get(name)} for "
        f"{group.place_of(0)}; give all ranks the same configuration"
        for name, value in settings.items()
        if value != firsts.get(name)
    )
    raise_first(group, next(problems, ""))


def require_equal_data(group: ProcessGroup, annotations: Mapping[str, Annotations]) -> None:
    """Refuse to train on other annotations on another rank; they are named by their split.

    Raises:
        InputError: On all ranks; names the split and both hosts.
    """
    for split, content in annotations.items() if group.size > 1 else ():
        first, *others = group.all_gather((len(content), content.checksum()), tuple[int, int])
        for rank, other in enumerate(others, start=1):
            if other != first:
                raise InputError(
                    f"data: {group.place_of(rank)} has other {split} annotations than "
                    f"{group.place_of(0)} ({other[0]:,} and {first[0]:,} images); copy the same "
                    "data set to all hosts"
                )


def raise_first(group: ProcessGroup, error: str) -> None:
    """Raise the first error of any rank on all ranks: none would come to the next exchange.

    Raises:
        InputError: The error of a rank is not empty.
    """
    if errors := [*filter(None, group.all_gather(error, str))]:
        raise InputError(errors[0])


def share_weights(
    group: ProcessGroup,
    model: nn.Module,
    optimizer: Optimizer,
    average: WeightAverage | None = None,
) -> None:
    """Copy rank 0's weights, their average, and its optimizer's state if any, to all ranks.

    So only one host needs the files of pretrained weights and checkpoints.
    """
    if group.size == 1:
        return
    averages = average.tensors.values() if average else ()
    group.broadcast([*model.state_dict().values(), *averages])
    parameters = dict(model.named_parameters())

    def shape_of(name: str) -> torch.Size | None:
        parameter = parameters.get(name.rpartition("/")[0])
        return None if parameter is None else parameter.shape

    # The other ranks' optimizers have no tensors yet that could receive a broadcast.
    tensors = group.tensors_from_first(
        lambda: optimizer_tensors(model, optimizer), shape_of=shape_of
    )
    if not group.is_first and tensors:
        load_optimizer(tensors, model, optimizer, source="rank 0")


def share_rank_states(
    group: ProcessGroup, read: Callable[[], list[RankState]], *, norms: Mapping[str, Tensor]
) -> list[RankState]:
    """Return on all ranks the states that rank 0 reads; none if they are of other ranks.

    `norms` are this rank's, see `rank_norms`.

    Raises:
        InputError: They do not fit the norms.
    """
    states = read() if group.is_first else []
    if len(states) != group.size:
        states = []
    random = group.from_first(lambda: [state.random for state in states], list[dict[str, Any]])

    def shape_of(name: str) -> torch.Size | None:
        norm = name.partition("/")[2]
        # A checkpoint may have averages that this run has not.
        values = norms.get(norm, norms.get(norm.removeprefix(AVERAGE)))
        return None if values is None else values.shape

    tensors = group.tensors_from_first(lambda: number_statistics(states), shape_of=shape_of)
    return rank_states(random, tensors)


def agree_on_weights(
    group: ProcessGroup, model: nn.Module, average: WeightAverage | None = None
) -> bool:
    """Make trainable weights bitwise equal to rank 0's; return whether they were equal before.

    So are their averages.

    Averaged gradients are the same everywhere, so equal processors keep equal weights. On hosts of
    different kinds the optimizer rounds differently, and nothing else would correct the drift.
    """
    if group.size == 1:
        return True
    trained = [value.detach() for value in model.parameters() if value.requires_grad]
    if average is not None:
        trained += [value for name, value in average.tensors.items() if name not in average.norms]
    # The ranks compare four bytes each. Sending the weights at every evaluation would cost more.
    if len(set(group.all_gather(bit_checksum(trained), int))) == 1:
        return True
    group.broadcast(trained)
    return False


def bit_checksum(tensors: Iterable[Tensor]) -> int:
    """Return a checksum of all bits, of any number format."""
    checksum = 0
    for tensor in tensors:
        # One block of memory, such as channels_last, is read in memory order, without a copy.
        is_block = is_one_block(tensor)
        flat = tensor.as_strided((tensor.numel(),), (1,)) if is_block else tensor.flatten()
        checksum = zlib.crc32(flat.view(torch.uint8).numpy().data, checksum)
    return checksum


def averaged_norms(group: ProcessGroup, norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return means over the ranks of the running statistics of `norms`; all ranks call it.

    Each rank has statistics of its own images, and averages of them over its steps. The means are
    copies, under the same names; empty for one rank, or if norms are constants.
    """
    copied = {name: values.clone() for name, values in norms.items()} if group.size > 1 else {}
    # The mean of equal numbers can be rounded, but averaging twice must change nothing.
    if copied and len(set(group.all_gather(bit_checksum(copied.values()), int))) > 1:
        group.average(copied.values())
    return copied


def average_norms(group: ProcessGroup, norms: Mapping[str, Tensor]) -> None:
    """Replace each rank's running statistics by their means over the ranks."""
    for name, averaged in averaged_norms(group, norms).items():
        norms[name].copy_(averaged)


def agreed_batches(group: ProcessGroup, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield this rank's batches; if a rank cannot read an image, raise the error on all ranks.

    Otherwise they would wait for its gradients. Every rank has the same number of batches.

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
        raise_first(group, error)
        assert batch is not None
        yield batch


SLOWEST = ("seconds", "data_seconds", "page_faults", "resident_mb", "peak_resident_mb")
"""Fields of a merged step that have the maximum over the ranks."""
JOINED = ("bad_images", "nonfinite", "notes")
"""Fields of a merged step that have the items of all ranks."""


def merge_results(results: Sequence[StepResult]) -> StepResult:
    """Return one step of all ranks: mean losses over all images, times of the slowest rank.

    Gradients are averages, so all ranks have the same norm. Memory is the maximum. The time of the
    exchange is the minimum: the last rank to arrive waits for the exchange alone, the others also
    for that rank.
    """
    first = results[0]
    images = [result.images for result in results]
    # Equal weights would only add rounding.
    weights = images if len(set(images)) > 1 else None
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
    """Call `make` on rank 0 first, which writes files, then on the others, which find them.

    Rank 0 returns after all have called it: if it fails afterwards, it removes the run's folder,
    which no other rank may still be using.
    """
    # The first barrier releases the other ranks once rank 0 has finished, the second holds rank 0
    # until they have. If `make` fails, no barrier is needed: an error of one rank ends the job.
    if not group.is_first:
        group.barrier()
    result = make()
    if group.is_first:
        group.barrier()
    group.barrier()
    return result
