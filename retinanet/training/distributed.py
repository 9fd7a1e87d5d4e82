"""Collective operations of a run's ranks, and the handling of ranks of different speed.

The ranks have equal weights, merge their steps and average their gradients. `SlowRank` detects a
rank that delays all others: a host that is busy, hot or older than the others. `BackgroundLoad`
detects other programs on this rank's cores, where every parallel region waits for the slowest
thread. `settle_batches` splits a batch before the first step (`distributed.batch_split`): `speed`
measures how fast each rank trains while all others train too.
"""

import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import fmean, median
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import InputError, printable
from common.machine import busiest, thread_wait_times, ticks_on
from data.dataset import Batch
from launch.limits import free_memory
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.config_types import split_at_start, split_by_speed
from retinanet.engine.engines import PreparedTraining, chosen_engine
from retinanet.engine.folded_forward import RunningStatistics
from retinanet.engine.gradient_sync import Averaging, GradientExchange, share_gradients
from retinanet.engine.host_gradients import average_over_hosts
from retinanet.engine.kernel_calls import is_one_block
from retinanet.memory import images_that_fit
from retinanet.training.checkpoint import load_optimizer, optimizer_tensors
from retinanet.training.ema import WeightAverage
from retinanet.training.loop import (
    NO_PROFILER,
    StepProfiler,
    StepResult,
    accumulate_gradients,
    batch_losses,
)
from retinanet.training.train_state import AVERAGE, RankState, number_statistics, rank_states

Value = TypeVar("Value")


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
        errors = list(filter(None, group.all_gather(error, str)))
        if errors:
            raise InputError(errors[0])
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
    """Return the exchange that averages gradients over the ranks of a group; None for one rank.

    All of them call it, with equal models. `backend` and `compress` are the configuration's. A rank
    whose gradients are missing for `timeout_s` ends the job. `weight` is this rank's weight in the
    average; None: equal weights.

    Raises:
        InputError: Shared memory is configured, but the ranks have none in common.
    """
    if group.size == 1:
        return None
    parameters = prepared.model.parameters()
    values = sum(value.numel() for value in parameters if value.requires_grad)
    averaging = choose_averaging(
        group, values=values, backend=backend, compress=compress, timeout_s=timeout_s
    )
    exchange = GradientExchange(
        prepared.model,
        partial(batch_losses, prepared, focal_form=focal_form, profiler=profiler),
        compress=compress,
        averaging=averaging,
        weight=weight,
        ranks=group.exchange,
    )
    if group.size > 2 and (averaging is None or not averaging.has_fixed_order):
        settle_buckets(exchange, prepared)
    return exchange


def choose_averaging(
    group: ProcessGroup, *, values: int, backend: str, compress: str, timeout_s: float
) -> Averaging | None:
    """Return how several ranks average `values` gradients; None: by torch's process group.

    All of them call it. The other arguments are those of `make_exchange`, which raises the same.
    """
    averaging: Averaging | None = None
    compresses = compress == "bf16"
    if group.is_on_one_host and backend in ("auto", "shared"):
        averaging = share_gradients(
            group.all_gather,
            rank=group.rank,
            values=values,
            compress=compresses,
            timeout_s=timeout_s,
        )
    elif backend == "mpi" or (backend in ("auto", "gloo") and not group.is_on_one_host):
        averaging = average_over_hosts(
            group, values=values, compress=compresses, timeout_s=timeout_s
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
    batch = dummy_batch(1, SETTLING_SIDE)
    # Gradients, and the running statistics that the passes change, are discarded.
    for _ in range(PASSES_UNTIL_SORTED):
        accumulate_gradients(prepared, [batch], exchange=exchange)
        prepared.optimizer.zero_grad(set_to_none=True)
    statistics.put_back()


BOX = (0.2, 0.2, 0.6, 0.7)  # The object of each image, in shares of its side. [xyxy]


def dummy_batch(images: int, size: int) -> Batch:
    """Return a batch of `size` × `size` noise images, without using torch's global generator."""
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


STEPS = 20  # Window of steps: single steps are slow for many reasons
MOST_OF_THEM = 0.8  # Fraction of the window in which the same rank is slowest
LONGER_NOTED = 0.25  # Least excess over the mean of the other ranks, as a fraction of it


class SlowRank:
    """Compares forward passes: in a backward pass fast ranks wait for slow ones."""

    def __init__(self, hosts: Sequence[str], *, advice: str = "") -> None:
        """Prepare messages with the `hosts` of the ranks, and with `advice` at the end."""
        self._hosts = hosts
        self._advice = advice
        self._slowest: deque[int] = deque(maxlen=STEPS)
        self._longer: deque[float] = deque(maxlen=STEPS)
        self._noted: int | None = None

    def note(self, results: Sequence[StepResult]) -> str | None:
        """Return a note about a slow rank, once per rank; call it with every step of all ranks."""
        times = [result.forward_seconds for result in results]
        slowest = times.index(max(times))
        others = [seconds for rank, seconds in enumerate(times) if rank != slowest]
        if not others or not fmean(others):
            return None
        self._slowest.append(slowest)
        self._longer.append(times[slowest] / fmean(others) - 1)
        rank, count = Counter(self._slowest).most_common(1)[0]
        longer = fmean(self._longer)
        is_slow = count >= MOST_OF_THEM * STEPS and longer >= LONGER_NOTED
        if not is_slow or rank == self._noted:
            return None
        self._noted = rank
        return (
            f"note: rank {rank} on {self._hosts[rank]} is slow, and all wait for it: its forward "
            f"passes took {longer:.0%} longer than the others' in the last {STEPS} steps"
            f"{self._advice}"
        )


def advice_on_slow_rank(config: Config) -> str:
    """Return advice to give a slow rank fewer images, if batches are split evenly."""
    if config.distributed.batch_split != "even" or config.training.batch_size == 1:
        return ""
    return "; to give it fewer images, --resume with distributed.batch_split=speed"


SECONDS = 5.0
"""Interval of the measurements: long enough for a stable share, and several fit a short run."""
LEAST_WAIT = 0.2
"""Least share of the time that a compute thread waited for its core, for a note.
An undisturbed thread waits for less than 0.02, one that competes with a process for about 0.5."""
LEAST_CORES = 0.1  # Processes that used less are not named
MOST_NAMED = 3
SILENT_SECONDS = 600.0
"""Least time between two notes, so that a persistent load does not fill the log."""


class BackgroundLoad:
    """Measures how long compute threads wait for their cores, and which processes use these."""

    def __init__(self, cpus: Collection[int], *, place: str, seconds: float = SECONDS) -> None:
        """Watch this rank's `cpus`, once in `seconds`; `place` names rank and host in the note."""
        self._cpus = frozenset(cpus)
        self._place = place
        self._seconds = seconds
        self._start = time.monotonic()
        self._waits = thread_wait_times()
        self._ticks: dict[int, int] | None = None
        self._silent_until = self._start

    def note(self) -> str | None:
        """Return a note about the load, if there is any; call it after every step."""
        now = time.monotonic()
        seconds = now - self._start
        if seconds < self._seconds:
            return None
        waits = thread_wait_times()
        # Threads that were started in this interval have no earlier reading.
        known = waits.keys() & self._waits.keys()
        # The largest share counts, since a parallel region waits for its slowest thread.
        share = max((waits[thread] - self._waits[thread] for thread in known), default=0) / seconds
        before, self._ticks = self._ticks, None
        self._start, self._waits = now, waits
        if share < LEAST_WAIT or now < self._silent_until:
            return None
        # Reading /proc of all processes takes milliseconds, so do it only once a thread has waited.
        # Usage is a difference of two readings: the note follows in the next interval.
        self._ticks = ticks_on(self._cpus)
        if before is None:
            return None
        self._silent_until = now + SILENT_SECONDS
        processes = busiest(before, self._ticks, seconds=seconds, least_cores=LEAST_CORES)
        named = [
            f"{printable(process.name)} (process {process.process}, {process.cores:.1f} cores"
            f"{', started by this run' if process.is_ours else ''})"
            for process in processes[:MOST_NAMED]
        ]
        causes = ", ".join(named)
        if not causes:
            causes = "no visible process, perhaps one in another container"
        return (
            f"note: {self._place} shares its cores: a compute thread waited for its core for "
            f"{share:.0%} of the last {seconds:.0f} s. Busy on them: {causes}. A step waits for "
            "its slowest thread; end or move the other work, or give this run fewer cores "
            "(launch.threads)"
        )


@dataclass(frozen=True, kw_only=True)
class RankBatches:
    """The split of a batch among the ranks."""

    images: tuple[int, ...]
    speeds: tuple[float, ...] = ()  # Each rank's speed, if measured at this start. [images/s]
    is_recorded: bool = False
    """Whether the speeds were measured at an earlier start of the run."""

    def weight(self, rank: int) -> float:
        """Return a rank's part of all images, its weight in averages over them."""
        return self.images[rank] / sum(self.images)


def settle_batches(
    config: Config,
    prepared: PreparedTraining,
    *,
    group: ProcessGroup,
    local_ranks: int,
    recorded: Sequence[int] = (),
) -> RankBatches:
    """Split batches as configured; all ranks call it before gradients are exchanged.

    The `local_ranks` of this host share its memory. `recorded` is the split by speed of a resumed
    run, see `recorded_split`; if empty, speeds are measured.

    Raises:
        InputError: A list is not of these ranks, or not of this batch.
    """
    setting, batch_size = config.distributed.batch_split, config.training.batch_size
    start = split_at_start(setting, batch_size=batch_size, ranks=group.size)
    if setting != "speed":
        return RankBatches(images=start)
    if recorded:
        # A new measurement would differ slightly. Another split changes the sums of gradients, so
        # the resumed run would no longer be bitwise equal.
        return RankBatches(images=tuple(recorded), is_recorded=True)
    # Each rank needs at least one image, so only one split is possible.
    if group.size == 1 or batch_size == 1:
        return RankBatches(images=start)
    speed = measured_speed(
        prepared,
        group=group,
        images=batch_size,
        image_size=config.data.image_size,
        focal_form=config.engine.focal_loss,
    )
    # Each rank has a limit of its own, since hosts may differ in memory.
    most = images_that_fit(
        config,
        num_classes=prepared.model.head.classification_head.num_classes,
        engine=chosen_engine(config.engine.name),
        local_ranks=local_ranks,
        available=free_memory(),
    )
    limit = sum(start) if most is None else most
    measured = group.all_gather((speed, limit), tuple[float, int])
    speeds, limits = zip(*measured, strict=True)
    images = split_by_speed(speeds, images=sum(start), most=limits)
    return RankBatches(images=images, speeds=speeds)


PASSES = 3  # Passes of the slowest rank during the measurement


def measured_speed(
    prepared: PreparedTraining,
    *,
    group: ProcessGroup,
    images: int,
    image_size: int,
    focal_form: str = "auto",
) -> float:
    """Return this rank's speed on dummy images [images/s]; all ranks call it.

    All ranks compute for the same time: if one finished early, the others would have caches and
    memory bandwidth that they lack in a step. Weights, optimizer, running statistics and random
    states are unchanged afterwards.
    """
    prepared.model.train()
    statistics = RunningStatistics(prepared.model)
    statistics.keep()
    batch = dummy_batch(images, image_size)

    def seconds_of_pass() -> float:
        start = time.perf_counter()
        # Without an exchange, in which a fast rank would wait for the slow ones.
        accumulate_gradients(prepared, [batch], focal_form=focal_form)
        prepared.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    # The first pass is not measured: oneDNN builds its kernels, and memory is mapped.
    seconds_of_pass()
    slowest = max(group.all_gather(seconds_of_pass(), float))
    end = time.perf_counter() + PASSES * slowest
    seconds: list[float] = []
    while not seconds or time.perf_counter() < end:
        seconds.append(seconds_of_pass())
    statistics.put_back()
    return images / median(seconds)
