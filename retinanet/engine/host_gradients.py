"""Averages of gradients over several hosts, in two levels.

Within a host each rank writes its gradients to shared memory, and the rank of number i sums slice i
of all. Between hosts the ranks of number i average slice i with each other, by `MpiTransport` or
`GlooTransport`. Then each rank reads all slices of its host. So a host sends its gradients once,
however many ranks it has, and all of them send at the same time.

The main thread only writes. All else is done by one thread, on the communication cores if there
are any, while the backward pass goes on. It alone calls MPI. It divides each bucket of DDP into
parts, and continues a few of them at a time, each a generator: while one is added, others are on
their way.
"""

import ctypes
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from common.console import discard_output
from launch.compute_threads import calling_thread_on
from launch.process_group import ProcessGroup, new_group
from launch.rendezvous import MODULE
from retinanet.engine.gradient_sync import LARGEST_BUCKETS, SHARED, GradientMemory, share_memory

Operation = Callable[[], bool]
"""Continues an operation and returns whether it is over; it must be called until then."""


class Transport(Protocol):
    """Collective operations of one rank on each host; all call them in the same order.

    An all-gather has an order of its own: it may come before or after other operations.
    """

    name: str
    hosts: int

    def all_reduce(self, values: Tensor) -> Operation:
        """Replace float32 values by their sums over the hosts."""

    def all_to_all(self, sent: Tensor, received: Tensor) -> Operation:
        """Send part i of a tensor to host i, and receive host i's in part i of the other."""

    def all_gather(self, sent: Tensor, received: Tensor) -> Operation:
        """Send a tensor to all hosts, and receive host i's in part i of the other."""


class MpiTransport:
    """Operations by the launcher's MPI, which `launch.rendezvous` has initialized.

    MPI's thread level must be SERIALIZED: one thread makes these calls.
    """

    name = "mpi"

    def __init__(self, members: Sequence[int]) -> None:
        """Connect to the ranks `members`, this one among them, which all call it."""
        mpi: Any = sys.modules[MODULE]
        world, self._in_place = mpi.COMM_WORLD, mpi.IN_PLACE
        group = world.group.Incl(list(members))
        # All ranks must call the operations of a communicator in the same order. All-gathers follow
        # when data has arrived, so that they have no fixed order among the others.
        self._first, self._second = (world.Create_group(group, tag) for tag in (0, 1))
        self.hosts = len(members)

    def all_reduce(self, values: Tensor) -> Operation:
        """See `Transport`."""
        return _tested(self._first.Iallreduce(self._in_place, values.numpy()), values)

    def all_to_all(self, sent: Tensor, received: Tensor) -> Operation:
        """See `Transport`."""
        return _tested(self._first.Ialltoall(sent.numpy(), received.numpy()), sent, received)

    def all_gather(self, sent: Tensor, received: Tensor) -> Operation:
        """See `Transport`."""
        return _tested(self._second.Iallgather(sent.numpy(), received.numpy()), sent, received)


def _tested(request: Any, *buffers: Tensor) -> Operation:
    """Return an MPI request as an operation, which keeps its buffers."""

    def is_over() -> bool:
        return bool(buffers) and bool(request.Test())

    return is_over


class GlooTransport:
    """Operations by gloo, whose threads run on the communication cores too."""

    name = "gloo"

    def __init__(self, groups: Sequence[dist.ProcessGroup], *, hosts: int) -> None:
        """Use two process groups of the same ranks, one on each host."""
        self._first, self._second = groups
        self.hosts = hosts

    def all_reduce(self, values: Tensor) -> Operation:
        """See `Transport`."""
        return _completed(dist.all_reduce(values, group=self._first, async_op=True))

    def all_to_all(self, sent: Tensor, received: Tensor) -> Operation:
        """See `Transport`."""
        # As bytes: gloo has no 16-bit integers.
        buffers = received.view(torch.uint8), sent.view(torch.uint8)
        return _completed(dist.all_to_all_single(*buffers, group=self._first, async_op=True))

    def all_gather(self, sent: Tensor, received: Tensor) -> Operation:
        """See `Transport`."""
        buffers = received.view(torch.uint8), sent.view(torch.uint8)
        return _completed(dist.all_gather_into_tensor(*buffers, group=self._second, async_op=True))


def _completed(work: dist.Work | None) -> Operation:
    """Return torch's work as an operation."""
    assert work is not None

    def is_over() -> bool:
        return work.is_completed() and work.wait()  # which raises the error of the work

    return is_over


@dataclass(frozen=True, kw_only=True)
class Slices:
    """The slices of a part of the gradients, one for each of the first ranks of a host."""

    count: int
    """The fewest ranks of a host: each slice has its rank on all of them."""

    def of(self, number: int, values: int) -> slice:
        """Return a slice; with few values, the last ones are empty."""
        length = -(-values // self.count)
        return slice(min(values, number * length), min(values, (number + 1) * length))


@dataclass(kw_only=True)
class _Bucket:
    """The gradients that one call averages."""

    gradients: Tensor
    future: "Future[Tensor]"
    missing: int  # Parts that are not averaged


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """A part of a bucket on its way; `number` counts those of all exchanges, `index` of this."""

    number: int
    index: int
    start: int
    gradients: Tensor
    bucket: _Bucket
    is_last: bool


PART = 1 << 20
"""Most gradients of a part: adding them takes a millisecond."""
PARTS_ON_THEIR_WAY = 4
POLL_S = 50e-6
"""The pause of the thread while the backward pass computes, and none of its parts can go on."""
LANE_DONE = LARGEST_BUCKETS
"""Flags from here on: this rank has written the average of its slice."""


class HostGradients:
    """This rank's part in averages over all ranks, which are on several hosts."""

    def __init__(
        self,
        memory: GradientMemory | None,
        transport: Transport | None,
        *,
        hosts: int,
        slices: int,
        compress: bool,
        timeout_s: float,
        cpus: tuple[int, ...] = (),
    ) -> None:
        """Start the thread, on the given CPUs if there are any.

        Args:
            memory: That of the ranks of this host, without rounding; None: each is a host.
            transport: To the ranks of the same number; None: this rank has no slice.
            hosts: The number of hosts.
            slices: The fewest ranks of a host.
            compress: Whether to round the gradients of a host to BF16, which halves the bytes
                between hosts. Sums are float32.
            timeout_s: The longest time without progress.
            cpus: For the thread; none: those of the calling thread.
        """
        self._memory, self._transport, self._compress = memory, transport, compress
        self._slices, self._timeout_s = Slices(count=slices), timeout_s
        self._library = SHARED.library()
        self.has_fixed_order = compress or hosts == 2
        between = transport.name if transport else "other ranks"
        self.way = f"shared memory, between hosts by {between}" if memory else between
        self._number = self._index = 0  # Of the next part
        self._progress = time.monotonic()
        self._turns = [0, 0]
        """The next part to begin an operation: all-reduce or all-to-all, and all-gather."""
        self._sent_parts: dict[int, Tensor] = {}
        self._free: list[Tensor] = []
        self._parts: queue.SimpleQueue[_Part | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        with calling_thread_on(cpus):  # which a thread inherits from the one that starts it
            self._thread = threading.Thread(target=self._run, name="gradients", daemon=True)
            self._thread.start()

    def average(
        self, gradients: Tensor, *, weight: float, index: int, is_last: bool
    ) -> "Future[Tensor]":
        """Start to replace a part of the gradients by its average, see `SharedGradients`."""
        parts = gradients.split(PART)
        bucket = _Bucket(gradients=gradients, future=Future(), missing=len(parts))
        if index == 0:
            self._index = 0
        for number, part in enumerate(parts, start=1):
            start = self._write(part, weight=weight)
            self._parts.put(
                _Part(
                    number=self._number,
                    index=self._index,
                    start=start,
                    gradients=part,
                    bucket=bucket,
                    is_last=is_last and number == len(parts),
                )
            )
            self._number += 1
            self._index += 1
        return bucket.future

    def _write(self, part: Tensor, *, weight: float) -> int:
        """Put a part, multiplied by the weight, where it starts its way; return its place."""
        threads, start = torch.get_num_threads(), 0
        if self._memory is not None:
            start = self._memory.reserve(self._index, part.numel())
            self._memory.write(part, start, weight=weight, threads=threads)
            self._memory.raise_flag(self._index)
        elif self._compress:
            sent = self._sent(self._index, part.numel())
            self._library.write_rounded(part, sent, part.numel(), weight, threads)
        else:
            part.mul_(weight)
        return start

    def close(self) -> None:
        """End the thread, and release the transport; after all averages are there."""
        self._parts.put(None)
        self._thread.join()
        self._transport = None

    def _run(self) -> None:
        """Continue all parts on their way, in order, until `close`."""
        active: dict[_Part, Iterator[None]] = {}
        is_waited_for = False
        while True:
            # With nothing on its way, the thread sleeps; a new part always wakes it.
            pause = None if not active else 0.0 if is_waited_for else POLL_S
            with suppress(queue.Empty):
                part = self._parts.get(timeout=pause)
                if part is None:
                    return
                if not active:
                    self._progress = time.monotonic()
                is_waited_for = part.is_last
                active[part] = self._steps(part)
            try:
                self._continue(active)
            except Exception as error:  # for the main thread, in the backward pass
                self._error = error
                for part in active:
                    if part.bucket.missing:
                        part.bucket.missing = 0
                        part.bucket.future.set_exception(error)  # type: ignore[arg-type]  # torch's annotation
                active.clear()

    def _continue(self, active: dict[_Part, Iterator[None]]) -> None:
        """Continue each part to its next wait, and drop those that are averaged.

        Raises:
            TimeoutError: For too long none has been averaged.
        """
        if self._error is not None:
            raise self._error
        chosen = islice(active.items(), PARTS_ON_THEIR_WAY)
        averaged = [part for part, steps in chosen if next(steps, steps) is steps]
        for part in averaged:
            del active[part]
        now = time.monotonic()
        if averaged:
            self._progress = now
        elif now - self._progress > self._timeout_s:
            limit = f"{self._timeout_s:g} s"
            raise TimeoutError(f"timed out: no gradients from another rank for {limit}")

    def _steps(self, part: _Part) -> Iterator[None]:
        """Average a part; yields whenever it has to wait."""
        gradients, values, memory = part.gradients, part.gradients.numel(), self._memory
        own = slice(0, 0)
        if memory is None:
            yield from self._between_hosts(part, gradients)
        else:
            while not memory.are_raised(part.index, ranks=range(memory.ranks)):
                yield
            owners = range(self._slices.count)
            if memory.rank in owners:
                own = self._slices.of(memory.rank, values)
                summed, start = gradients[own], part.start + own.start
                memory.sum(summed, start, ranks=range(memory.ranks), threads=1)
                if self._compress:
                    sent = self._sent(part.index, summed.numel())
                    self._library.write_rounded(summed, sent, summed.numel(), 1.0, 1)
                yield from self._between_hosts(part, summed)
                # In place of this rank's own gradients: only it has read this slice of them.
                memory.write(summed, start, weight=1.0, threads=1)
                memory.raise_flag(LANE_DONE + part.index)
            while not memory.are_raised(LANE_DONE + part.index, ranks=owners):
                yield
            for owner in owners:
                its = self._slices.of(owner, values)
                if owner != memory.rank:
                    start = part.start + its.start
                    memory.sum(gradients[its], start, ranks=[owner], threads=1)
        part.bucket.missing -= 1
        if not part.bucket.missing:
            part.bucket.future.set_result(part.bucket.gradients)

    def _between_hosts(self, part: _Part, summed: Tensor) -> Iterator[None]:
        """Replace the sum of this host by that of all hosts; yields while data is on its way."""
        transport, values = self._transport, summed.numel()
        assert transport is not None
        if not values:
            yield from self._operation(0, part, nothing)
            yield from self._operation(1, part, nothing)
        elif not self._compress:
            yield from self._operation(0, part, lambda: transport.all_reduce(summed))
            yield from self._operation(1, part, nothing)
        elif transport.hosts == 2:
            yield from self._swap(part, summed, transport)
        else:
            yield from self._in_shares(part, summed, transport)

    def _swap(self, part: _Part, summed: Tensor, transport: Transport) -> Iterator[None]:
        """Add the rounded values that two hosts send each other.

        As many bytes as by all-to-all and all-gather, but in one operation; and the sum is not
        rounded again.
        """
        sent = self._sent(part.index, summed.numel())
        yield from self._operation(0, part, nothing)
        with self._received(2 * len(sent)) as received:
            yield from self._operation(1, part, lambda: transport.all_gather(sent, received))
            self._add(received.chunk(2), summed)

    def _in_shares(self, part: _Part, summed: Tensor, transport: Transport) -> Iterator[None]:
        """Add a share of the rounded values on each host, and send the sums to all."""
        values = summed.numel()
        share, sent = -(-values // transport.hosts), self._sent(part.index, values)
        shared, mean = sent[:share], summed[:share]
        with self._received(len(sent)) as received:
            yield from self._operation(0, part, lambda: transport.all_to_all(sent, received))
            self._add(received.split(share), mean)
            self._library.write_rounded(mean, shared, share, 1.0, 1)
            yield from self._operation(1, part, lambda: transport.all_gather(shared, received))
            self._add([received], summed)

    def _add(self, rounded: Sequence[Tensor], total: Tensor) -> None:
        """Write the sums of rounded values, in their order, to the float32 values of `total`."""
        places = (ctypes.c_void_p * len(rounded))(*(part.data_ptr() for part in rounded))
        self._library.sum_rounded(places, len(rounded), total, len(total), 1)

    def _operation(self, kind: int, part: _Part, start: Callable[[], Operation]) -> Iterator[None]:
        """Start the part's operation after those of all parts before it, as on all ranks.

        Yields until it is over.
        """
        while self._turns[kind] != part.number:
            yield
        is_over = start()
        self._turns[kind] += 1
        while not is_over():
            yield

    def _sent(self, index: int, values: int) -> Tensor:
        """Return a part's buffer in BF16, a multiple of the hosts long."""
        assert self._transport is not None
        hosts = self._transport.hosts
        length = hosts * -(-values // hosts)
        buffer = self._sent_parts.get(index)
        if buffer is None or len(buffer) != length:
            # Zeros, since what is behind the values is sent and added too.
            buffer = self._sent_parts[index] = torch.zeros(length, dtype=torch.int16)
        return buffer

    @contextmanager
    def _received(self, values: int) -> Iterator[Tensor]:
        """Lend a buffer of rounded values to one of the parts on their way."""
        buffer = self._free.pop() if self._free else torch.empty(0, dtype=torch.int16)
        if len(buffer) < values:
            buffer = torch.empty(values, dtype=torch.int16)
        yield buffer[:values]
        # Not after an error: the data may still arrive.
        self._free.append(buffer)


def nothing() -> Operation:
    """Return an operation that is over: a part may need only one of the two kinds."""
    return lambda: True


def average_over_hosts(
    group: ProcessGroup, *, values: int, compress: bool, timeout_s: float
) -> HostGradients | None:
    """Set up averages in two levels, within hosts and between them; all ranks call it.

    `values`: gradients in all, of one rank. Return None on all ranks if there is no compiler for
    the kernels, or for compute groups.
    """
    # torch makes a new process group by a call of all ranks of the job, not of a compute group.
    if group.job_ranks or not all(group.all_gather(SHARED.are_available(), bool)):
        return None
    numbers, memory = group.host_numbers, None
    if not group.is_on_one_host and group.size > len(set(numbers)):
        neighbours = [rank for rank, host in enumerate(numbers) if host == numbers[group.rank]]
        memory = share_memory(
            group.all_gather,
            rank=group.rank,
            values=values,
            compress=False,
            neighbours=neighbours,
        )
    if memory is None:  # such as containers of one host, of which none sees the others' processes
        numbers = tuple(range(group.size))
    ranks_of = [[rank for rank, at in enumerate(numbers) if at == host] for host in set(numbers)]
    slices = min(map(len, ranks_of))
    # The ranks that average a slice: those of the same number on their hosts.
    peers = [[ranks[number] for ranks in ranks_of] for number in range(slices)]
    transport = connect_hosts(group, peers, timeout_s=timeout_s)
    averaging = HostGradients(
        memory,
        transport,
        hosts=len(ranks_of),
        slices=slices,
        compress=compress,
        timeout_s=timeout_s,
        cpus=group.comm_cpus,
    )
    group.on_leave.append(averaging.close)
    return averaging


def connect_hosts(
    group: ProcessGroup, peers: Sequence[list[int]], *, timeout_s: float
) -> Transport | None:
    """Return this rank's transport to its peers; None if it has none. All ranks call it."""
    own = next((ranks for ranks in peers if group.rank in ranks), None)
    if group.transport.name == "mpi":
        return MpiTransport(own) if own else None
    transport = None
    # gloo starts its threads here, and they inherit the CPUs of this one. It also prints lines to
    # stdout from C++.
    with calling_thread_on(group.comm_cpus), discard_output():
        for ranks in peers:
            timeout = timedelta(seconds=timeout_s)
            groups = [new_group(ranks, backend="gloo", timeout=timeout) for _ in range(2)]
            if ranks == own:
                transport = GlooTransport(groups, hosts=len(ranks))
    return transport
