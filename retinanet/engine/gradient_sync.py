"""Averages of the ranks' gradients during the backward pass: torch's DDP, on CPUs.

Ranks of one host average through memory that they share: a network's way would cost several copies
by the kernel, on the cores that compute. Each rank writes its gradients once, optionally rounded,
to memory that the other ranks have mapped too, and sums theirs from there. That memory has no file:
`SharedMemory` makes it, and `map_memory` maps that of another process of the host.
"""

import ctypes
import inspect
import mmap
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from common.native import NativeLibraryError
from retinanet.engine.kernel_calls import CSRC, Kernels

Losses = dict[str, Tensor]


class MappedMemory(NamedTuple):
    """The memory of a process as this process sees it."""

    address: int
    mapped: mmap.mmap  # Kept as long as the address is used


class GradientMemory:
    """Memory to which each rank of one host writes its gradients, and flags that announce them."""

    def __init__(
        self, memory: Sequence[MappedMemory], *, size: int, rank: int, compress: bool
    ) -> None:
        """Use `share_memory`."""
        self._memory, self._size = memory, size
        self.rank, self.ranks = rank, len(memory)
        self._compress = compress
        self._library = SHARED.library()
        self._exchange = self._next = 0

    def reserve(self, index: int, values: int) -> int:
        """Return where a part of an exchange starts; called with each part in order, from 0."""
        assert index < LARGEST_BUCKETS
        if index == 0:
            self._exchange += 1
            self._next = 0
        start = self._next
        self._next += -(-values // LINE) * LINE
        return start

    def write(self, gradients: Tensor, start: int, *, weight: float, threads: int) -> None:
        """Write this rank's gradients, multiplied by its weight; they are one block of float32."""
        assert gradients.is_contiguous()
        write = self._library.write_rounded if self._compress else self._library.write_floats
        write(gradients, self._values(self.rank, start), gradients.numel(), weight, threads)

    def sum(self, out: Tensor, start: int, *, ranks: Sequence[int], threads: int) -> None:
        """Replace `out` by the sum of what these ranks have written, in this order."""
        add = self._library.sum_rounded if self._compress else self._library.sum_floats
        addresses = (ctypes.c_void_p * len(ranks))(*(self._values(rank, start) for rank in ranks))
        add(addresses, len(ranks), out, out.numel(), threads)

    def raise_flag(self, flag: int) -> None:
        """Announce that this rank has written everything that a flag stands for."""
        # Only after all threads have returned from writing: the flag's release store makes every
        # value visible to a rank that reads the flag.
        self._library.raise_flag(self._flag(self.rank, flag), self._exchange)

    def are_raised(self, flag: int, *, ranks: Sequence[int], wait_s: float = 0.0) -> bool:
        """Return whether these ranks have raised a flag in this exchange."""
        # Flags count exchanges and never fall, so that none has to be reset: a reset would need a
        # barrier of its own.
        addresses = (ctypes.c_void_p * len(ranks))(*(self._flag(rank, flag) for rank in ranks))
        return bool(self._library.flags_are_up(addresses, len(ranks), self._exchange, wait_s))

    def _flag(self, rank: int, flag: int) -> int:
        """Return the address of a rank's flag."""
        return self._memory[rank].address + FLAGS_AT + flag * LINE

    def _values(self, rank: int, start: int) -> int:
        """Return the address at which a rank writes in this exchange; two halves alternate.

        No rank writes to a half that another still reads: to be there, it has waited for all in the
        exchange between, and they had read the one before.
        """
        value_bytes = 2 if self._compress else 4
        half = HEADER + (self._exchange % 2) * (self._size // 2)
        return self._memory[rank].address + half + start * value_bytes


class _Pending(NamedTuple):
    """A part of the gradients that this rank has written, and other ranks may not have written."""

    gradients: Tensor
    bucket: int
    start: int
    future: "Future[Tensor]"


class SharedGradients:
    """This rank's part in averages over all ranks, which are on one host."""

    way = "shared memory"
    has_fixed_order = True

    def __init__(self, memory: GradientMemory, *, timeout_s: float) -> None:
        """Use `share_gradients`."""
        self._memory, self._timeout_s = memory, timeout_s
        self._ranks = range(memory.ranks)
        self._pending: deque[_Pending] = deque()

    def average(
        self, gradients: Tensor, *, weight: float, index: int, is_last: bool
    ) -> "Future[Tensor]":
        """Replace gradients by their average over all ranks, once all have written theirs.

        All ranks call it with parts of the same sizes, each one block of float32, in the order of
        `index` from 0; with the last part, all are there when it returns. `weight` is that of this
        rank in the average; those of all ranks add up to 1.

        Raises:
            TimeoutError: A rank did not write its part.
        """
        memory, threads = self._memory, torch.get_num_threads()
        start = memory.reserve(index, gradients.numel())
        future: Future[Tensor] = Future()
        memory.write(gradients, start, weight=weight, threads=threads)
        memory.raise_flag(index)
        self._pending.append(_Pending(gradients, index, start, future))
        # Sum the parts that all ranks have written by now, while the backward pass goes on; only
        # the last part waits.
        while self._pending and self._are_written(self._pending[0].bucket, wait=is_last):
            part = self._pending.popleft()
            memory.sum(part.gradients, part.start, ranks=self._ranks, threads=threads)
            part.future.set_result(part.gradients)
        return future

    def _are_written(self, index: int, *, wait: bool) -> bool:
        """Return whether all ranks have written a part; only `wait` waits for them."""
        seconds = self._timeout_s if wait else 0.0
        up = self._memory.are_raised(index, ranks=self._ranks, wait_s=seconds)
        if wait and not up:
            raise TimeoutError(f"timed out: no gradients from another rank for {seconds:g} s")
        return up


class Averaging(Protocol):
    """This rank's part in averages of gradients that do not go by torch's process group."""

    way: str
    """The way that gradients take, for the user."""
    has_fixed_order: bool
    """Whether a value's summands are added in one order, wherever it is in its part."""

    def average(
        self, gradients: Tensor, *, weight: float, index: int, is_last: bool
    ) -> "Future[Tensor]":
        """Start to replace a part of the gradients by its average, see `SharedGradients`."""


DDP_ARGUMENTS = inspect.signature(DistributedDataParallel.__init__).parameters
# Newer torch has another name for this argument, and warns if torch 2.8's is used.
BUFFER_SYNC = (
    "forward_sync_buffers" if "forward_sync_buffers" in DDP_ARGUMENTS else "broadcast_buffers"
)
BUFFERS_LEFT_ALONE: dict[str, Any] = {BUFFER_SYNC: False}


class GradientExchange:
    """`exchange(batch)` returns the losses of a batch; their backward pass averages gradients.

    Every rank calls it at the same steps, with batches of its own. Afterwards each parameter's
    gradient is that of one process with all the images: losses are means over a rank's images, and
    a rank counts in the average by its part of all images.
    """

    def __init__(
        self,
        model: nn.Module,
        compute_losses: Callable[[Any], Losses],
        *,
        compress: str,
        averaging: Averaging | None = None,
        weight: float | None = None,
        ranks: dist.ProcessGroup | None = None,
    ) -> None:
        """Wrap the model, equal on all ranks, in DDP, which then owns its gradients.

        Args:
            model: The model.
            compute_losses: Runs it on a batch.
            compress: `bf16` halves the bytes and rounds each rank's gradients; `none`.
            averaging: Made for the same `compress`; None: gradients go by the process group's
                backend.
            weight: This rank's part of all images; None: all ranks have as many.
            ranks: The averaging ranks; None: all of the job.
        """
        self.exposed_seconds = self._last_ready = 0.0
        """The time in the last backward pass from the last gradient until all were averaged."""
        self._averaging, self._ranks = averaging, ranks
        self._weight = 1 / dist.get_world_size(ranks) if weight is None else weight
        self._compresses, self._holds_back = compress == "bf16", False
        self._module = DistributedDataParallel(
            _LossesModule(model, compute_losses),
            process_group=ranks,
            # The weights are equal on all ranks already. Gradients as views of
            # the buckets are not copied.
            init_sync=False,
            gradient_as_bucket_view=True,
            static_graph=True,
            **BUFFERS_LEFT_ALONE,
        )
        self._module.register_comm_hook(None, self._reduce)

    def __call__(self, batch: Any) -> Losses:
        """Return the losses of a batch, see `detection_loss`."""
        losses: Losses = self._module(batch)
        return losses

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, and average them unless they are held back."""
        loss.backward()
        self.exposed_seconds = time.perf_counter() - self._last_ready

    @property
    def way(self) -> str:
        """Return the way of the averaging, or the process group's backend: `gloo` or `ccl`."""
        return self._averaging.way if self._averaging else str(dist.get_backend(self._ranks))

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Accumulate gradients on this rank in the context; the next backward pass averages them.

        Not DDP's `no_sync`: with a static graph, torch 2.8's stops averaging for good.
        """
        self._holds_back = True
        try:
            yield
        finally:
            self._holds_back = False

    def _reduce(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Start to average a part of the gradients; DDP copies the result to where they are."""
        # torch's own hook for BF16 does that copy in a thread of gloo, where it would start compute
        # threads anew, beside those that compute.
        self._last_ready = time.perf_counter()
        gradients = bucket.buffer()
        if self._holds_back:
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(gradients)
            return done
        if self._averaging is not None:
            return self._averaging.average(
                gradients, weight=self._weight, index=bucket.index(), is_last=bucket.is_last()
            )
        if self._compresses:
            sent = torch.empty_like(gradients, dtype=torch.bfloat16)
            torch.mul(gradients, self._weight, out=sent)  # rounds once
        else:
            sent = gradients.mul_(self._weight)
        work = dist.all_reduce(sent, group=self._ranks, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])


class _LossesModule(nn.Module):
    """The module for DDP, whose outputs lead to all gradients: two numbers, not large logits."""

    def __init__(self, model: nn.Module, compute_losses: Callable[[Any], Losses]) -> None:
        super().__init__()
        self.model = model
        self._compute_losses = compute_losses

    def forward(self, batch: Any) -> Any:
        return self._compute_losses(batch)


SHARED = Kernels(
    CSRC / "shared_gradients.cpp",
    write_rounded="PPqfi",
    write_floats="PPqfi",
    sum_rounded="PqPqi",
    sum_floats="PqPqi",
    raise_flag="Pq",
    flags_are_up="Pqqd->i",
)

LARGEST_BUCKETS = 1023
LINE = 64  # A processor's cache line. [bytes]
# Behind the name. Each flag has a cache line of its own: on a shared one, a rank that raises its
# flag would take the line away from those that poll the others. [bytes]
FLAGS_AT = LINE
# One flag of each bucket for a rank's gradients, one for averages (`host_gradients`).
HEADER = FLAGS_AT + 2 * LARGEST_BUCKETS * LINE

Gather = Callable[[Any, Any], list[Any]]  # `ProcessGroup.all_gather`


def share_gradients(
    all_gather: Gather, *, rank: int, values: int, compress: bool, timeout_s: float
) -> SharedGradients | None:
    """Set up averages over the ranks of one host; all ranks call it.

    If `compress`, gradients are rounded to BF16 on the way; sums are float32 in any case. Return
    None on all ranks if any of them cannot, see `share_memory`.
    """
    memory = share_memory(all_gather, rank=rank, values=values, compress=compress)
    return None if memory is None else SharedGradients(memory, timeout_s=timeout_s)


def share_memory(
    all_gather: Gather,
    *,
    rank: int,
    values: int,
    compress: bool,
    neighbours: Sequence[int] | None = None,
) -> GradientMemory | None:
    """Return memory for the gradients of the ranks of one host; all ranks of the job call it.

    `values`: gradients in all, of one rank. `neighbours`: the ranks of this host in order, this
    `rank` among them; None: all ranks. Return None on all ranks if any of them cannot: other hosts,
    no memory, no compiler, or containers that do not see each other's processes.
    """
    # Each part starts on a cache line of its own; two halves, as exchanges alternate between them.
    room = values + LINE * LARGEST_BUCKETS
    size = 2 * -(-room * (2 if compress else 4) // mmap.PAGESIZE) * mmap.PAGESIZE
    shared = None
    with suppress(NativeLibraryError, OSError):
        SHARED.library()
        shared = SharedMemory(HEADER + size)
    places = all_gather(shared.place if shared else None, MemoryPlace | None)
    neighbours = range(len(places)) if neighbours is None else neighbours
    memory = None
    if None not in places:
        # The memory of ranks on other hosts or in other containers cannot be seen from here.
        with suppress(OSError):
            memory = [map_memory(places[other], HEADER + size) for other in neighbours]
    all_mapped = all(all_gather(memory is not None, bool))
    # Only after the exchange: by then every rank has mapped the memory, or cannot.
    if shared is not None:
        shared.close()
    if memory is None or not all_mapped:
        return None
    return GradientMemory(memory, size=size, rank=neighbours.index(rank), compress=compress)


NAME_BYTES = 16
MemoryPlace = tuple[
    Annotated[str, Field(pattern=r"^/proc/[0-9]{1,10}/fd/[0-9]{1,10}$")],
    Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * NAME_BYTES}}}$")],
]
"""A path at which other processes of the user can open it until it is closed, and its name."""


class SharedMemory:
    """Shared memory that other processes map by its `place`.

    It has no file, so that nothing is left when the processes end, however they do; and it is not
    on /dev/shm, which containers keep small. Its first `LINE` bytes are taken by its name.
    """

    def __init__(self, size: int) -> None:
        """Create the memory, all zeros; `size` in bytes includes the name.

        Raises:
            OSError: There is not so much memory.
        """
        self._file = os.memfd_create("ranks")
        # Not ftruncate: missing memory must be an error here, not SIGBUS at the first write.
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError:
            os.close(self._file)
            raise
        self._name = secrets.token_bytes(NAME_BYTES)
        os.pwrite(self._file, self._name, 0)

    @property
    def place(self) -> MemoryPlace:
        """Return the name by which other processes map the memory until it is closed."""
        return f"/proc/{os.getpid()}/fd/{self._file}", self._name.hex()

    def close(self) -> None:
        """Prevent new mappings; existing ones remain valid."""
        os.close(self._file)


def map_memory(place: MemoryPlace, size: int) -> MappedMemory:
    """Map memory that a process of this host has created.

    Raises:
        OSError: It cannot be seen from here, or its number is another process's: containers may
            number processes each for itself.
    """
    path, name = place
    with Path(path).open("r+b", buffering=0) as file:
        if os.pread(file.fileno(), NAME_BYTES, 0) != bytes.fromhex(name):
            raise FileNotFoundError(f"{path}: is not the memory of a rank")
        mapped = mmap.mmap(file.fileno(), size)
    return MappedMemory(ctypes.addressof(ctypes.c_char.from_buffer(mapped)), mapped)
