"""What the ranks of a run agree on: weights, each step's numbers, errors, running statistics.

TODO-DOC What each rank has of its own: random states, and running statistics of norms that train.

Everything else is equal on all ranks.

TODO-DOC The states of the random generators, so that a resumed run draws what it would have drawn.

TODO-DOC The way that the gradients of a run's ranks take.

TODO-DOC A batch of noise, for passes whose numbers nobody looks at.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import InputError
from data.dataset import Batch
from launch.process_group import ProcessGroup
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.folded_forward import RunningStatistics
from retinanet.engine.gradient_sync import GradientExchange
from retinanet.engine.kernel_calls import is_one_block
from retinanet.engine.shared_gradients import SharedGradients, share_gradients
from retinanet.training.loop import (
    NO_PROFILER,
    StepProfiler,
    StepResult,
    accumulate_gradients,
    batch_losses,
)

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


MOST_DIGITS = 9


@dataclass(frozen=True)
class RankState:
    """Of one rank."""

    random: dict[str, Any]
    """See `random_states`."""
    statistics: dict[str, Tensor]
    """Means and variances under the model's names, unless they are the checkpoint's model's."""


def trained_norms(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics of norms that train, under their names in the `state_dict`."""
    return {
        f"{name}.{statistic}": getattr(one, statistic)
        for name, one in model.named_modules()
        if isinstance(one, nn.BatchNorm2d)
        for statistic in ("running_mean", "running_var")
    }


def own_state(model: nn.Module, *, with_statistics: bool) -> RankState:
    """A copy of this rank's."""
    norms = trained_norms(model) if with_statistics else {}
    return RankState(random_states(), {name: one.clone() for name, one in norms.items()})


def restore_own_state(state: RankState, model: nn.Module) -> None:
    """Put a rank's state back.

    Raises:
        ValueError: It is not what `own_state` gives for this model.
    """
    restore_random_states(state.random)
    norms = trained_norms(model)
    with torch.no_grad():
        for name, values in state.statistics.items():
            if name not in norms or norms[name].shape != values.shape:
                raise ValueError(f"{name}: the model has no such norm")
            norms[name].copy_(values)


def numbered(states: Sequence[RankState]) -> dict[str, Tensor]:
    """Statistics of all ranks for one file: `1/backbone.body.bn1.running_mean`."""
    return {
        f"{rank}/{name}": values
        for rank, state in enumerate(states)
        for name, values in state.statistics.items()
    }


def rank_states(random: Sequence[dict[str, Any]], tensors: Mapping[str, Tensor]) -> list[RankState]:
    """The inverse: of each rank, from its random states and the file's tensors."""
    states = [RankState(one, {}) for one in random]
    for key, values in tensors.items():
        rank, _, name = key.partition("/")
        if rank.isdecimal() and len(rank) < MOST_DIGITS and int(rank) < len(states):
            states[int(rank)].statistics[name] = values
    return states


def seed_everything(seed: int) -> None:
    """Start Python's, numpy's and torch's generators from one seed."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """States of Python's, numpy's and torch's generators, as JSON takes them."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, np.array(words, dtype=np.uint32).tobytes().hex(), gauss],
        "numpy": [str(name), np.asarray(keys).tobytes().hex(), position, has_gauss, cached],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Put the generators back where `random_states` found them.

    Raises:
        ValueError: The states are not what `random_states` gives.
    """
    before = random_states()
    try:
        _restore(states)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        _restore(before)  # a generator took what it could not draw from
        raise ValueError(f"random states are damaged: {error!r}") from error


def _restore(states: Mapping[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, tuple(numbers(words, np.uint32).tolist()), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, numbers(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.from_numpy(numbers(states["torch"], np.uint8)))


def numbers(text: str, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """The numbers of which a hexadecimal text is the memory."""
    return np.frombuffer(bytearray.fromhex(text), dtype=kind)


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
    phases: StepProfiler = NO_PROFILER,
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
    batch = dummy_batch(1, SETTLING_SIDE)
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


BOX = (0.2, 0.2, 0.6, 0.7)
"""The object of each image, in shares of its side. [xyxy]"""


def dummy_batch(images: int, size: int) -> Batch:
    """So many images of `size` × `size` pixels; nothing is drawn from torch's own generator."""
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
