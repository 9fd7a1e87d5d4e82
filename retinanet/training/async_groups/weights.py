"""The shared weights of a model, which compute groups read and update asynchronously.

Hadjis et al. 2016, "Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and GPUs", arXiv
1606.04487, section 3: a group computes a gradient at the weights that it has read, and other groups
may update them before it is applied. Weights and optimizer state are in memory that the ranks of a
host share; a group's first rank takes the optimizer's step there itself.

Ranks on other hosts use `ServedWeights`: a thread of rank 0 for each such group receives its
gradients, takes the optimizer's step with them, and sends back the weights as they are then.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from retinanet.engine.gradient_sync import LINE, MemoryPlace, SharedMemory, map_memory
from retinanet.engine.kernel_calls import is_one_block
from retinanet.engine.optimizers import set_learning_rate

VALUES_OF_A_LINE = LINE // 4
VERSION_AT = LINE  # After the name. [bytes]
VALUES_AT = 2 * LINE
SECONDS_BETWEEN_TRIES = 0.0005

SLOTS = {
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "lamb": ("exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
}
"""Tensors that each optimizer keeps of a parameter, under torch's names."""
COUNTING = ("adam", "adamw", "lamb")  # Optimizers that also count each parameter's steps

MakeOptimizer = Callable[[nn.Module], Optimizer]
"""`make_optimizer` with all arguments but the model, for example."""


class GroupWeights:
    """A rank's view of the weights in shared memory."""

    def __init__(
        self,
        place: MemoryPlace,
        parameters: Sequence[nn.Parameter],
        *,
        optimizer: str,
        make: MakeOptimizer,
        timeout_s: float,
    ) -> None:
        """Map the memory at `place`, which `memory_of_weights` has created.

        The parameters are this rank's trainable ones, float32; only their layout matters. Others
        hold the lock for less than a second each; after `timeout_s` waiting for it is an error.

        Raises:
            OSError: The memory is not visible to this process.
        """
        slots = SLOTS[optimizer]
        memory = map_memory(place, bytes_of_weights(parameters, slots))
        # A descriptor for each view: `flock` belongs to the open file, so that two views of one
        # process, such as those of rank 0's threads, exclude each other too.
        self._lock = os.open(place[0], os.O_RDWR)
        self._timeout_s = timeout_s
        self._version = torch.frombuffer(
            memory.mapped, dtype=torch.int64, count=1, offset=VERSION_AT
        )
        values = torch.frombuffer(memory.mapped, dtype=torch.float32, offset=VALUES_AT)
        # The layout after name and version: step counts, weights, then one block for each slot. All
        # are float32, as are torch's step counts.
        size = count_values(parameters)
        counts, block, *blocks = values.split(
            [count_lines(len(parameters)), *[size] * (1 + len(slots))]
        )
        self._weights = [nn.Parameter(view) for view in placed(block, parameters)]
        self.optimizer = make(nn.ParameterList(self._weights))
        if optimizer in COUNTING:
            for index, weight in enumerate(self._weights):
                self.optimizer.state[weight]["step"] = counts[index]
        for slot, block in zip(slots, blocks, strict=True):
            for weight, view in zip(self._weights, placed(block, parameters), strict=True):
                self.optimizer.state[weight][slot] = view
        self._read = 0

    def fill(self, parameters: Sequence[nn.Parameter], optimizer: Optimizer) -> None:
        """Copy a rank's weights, and its optimizer's state if any, to the memory; one rank does."""
        with torch.no_grad():
            for weight, parameter in zip(self._weights, parameters, strict=True):
                weight.copy_(parameter)
                state = self.optimizer.state[weight]
                for slot, value in optimizer.state.get(parameter, {}).items():
                    if value is not None:
                        state[slot].copy_(value)

    def take_back(self, parameters: Sequence[nn.Parameter], optimizer: Optimizer) -> None:
        """Copy weights and state to a rank's parameters and optimizer, while no rank updates."""
        self.copy_to(parameters)
        for weight, parameter in zip(self._weights, parameters, strict=True):
            state = optimizer.state[parameter]
            for slot, value in self.optimizer.state[weight].items():
                if slot in state and state[slot] is not None:
                    state[slot].copy_(value)
                else:
                    # An optimizer that has taken no step has no state yet.
                    state[slot] = value.clone()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock on the weights; the kernel releases it if the process dies.

        Raises:
            TimeoutError: Another rank holds the lock for too long.
        """
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                # `flock` has no timeout, so the lock is polled.
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"timed out: another group has locked the weights for {self._timeout_s:g} s"
                    ) from None
            time.sleep(SECONDS_BETWEEN_TRIES)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def step(self, gradients: Sequence[Tensor], *, learning_rate: float) -> int:
        """Run the optimizer's step while holding the lock; return the staleness.

        The gradients are those of the rank's parameters, in their order, at the weights that it
        read last. The staleness is the number of updates by other groups since then.
        """
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        staleness = int(self._version) - self._read
        self._version += 1
        return staleness

    def copy_to(self, parameters: Sequence[nn.Parameter]) -> None:
        """Read the weights, while holding the lock or while no rank updates."""
        with torch.no_grad():
            for parameter, weight in zip(parameters, self._weights, strict=True):
                parameter.copy_(weight)
        self._read = int(self._version)


def memory_of_weights(parameters: Sequence[nn.Parameter], *, optimizer: str) -> SharedMemory:
    """Create memory for weights and optimizer state; close it once all ranks have mapped it.

    Raises:
        OSError: There is not enough memory.
    """
    return SharedMemory(bytes_of_weights(parameters, SLOTS[optimizer]))


def bytes_of_weights(parameters: Sequence[nn.Parameter], slots: Sequence[str]) -> int:
    """Return the size of the shared memory. [bytes]"""
    return VALUES_AT + 4 * (
        count_lines(len(parameters)) + count_values(parameters) * (1 + len(slots))
    )


def placed(block: Tensor, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    """Yield views of a block with the parameters' shapes and strides, aligned to cache lines."""
    start = 0
    for parameter in parameters:
        assert parameter.dtype == torch.float32 and is_one_block(parameter)
        size = parameter.numel()
        yield block[start : start + size].as_strided(parameter.shape, parameter.stride())
        start += count_lines(size)


def count_values(parameters: Sequence[nn.Parameter]) -> int:
    """Return how many numbers a block has, including the padding to cache lines."""
    return sum(count_lines(parameter.numel()) for parameter in parameters)


def count_lines(count: int) -> int:
    """Return `count` rounded up to full cache lines of numbers."""
    return -(-count // VALUES_OF_A_LINE) * VALUES_OF_A_LINE


STEP, READ, END = 1.0, 2.0, 3.0  # Kinds of requests


class ServedWeights:
    """A view of the weights for a rank on another host, with the methods of `GroupWeights`."""

    def __init__(
        self, pair: dist.ProcessGroup, parameters: Sequence[nn.Parameter], *, compress: bool
    ) -> None:
        """Exchange `parameters` over a process group of two: this rank and the job's rank 0.

        `compress`: whether gradients are sent in BF16.
        """
        self._pair = pair
        self._gradients = gradient_buffer(parameters, compress=compress)
        self._gradient_views = list(placed(self._gradients, parameters))
        self._weights = torch.empty(count_values(parameters))
        self._weight_views = list(placed(self._weights, parameters))
        self._is_fresh = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do nothing: rank 0 locks the weights in its steps and reads."""
        yield

    def step(self, gradients: Sequence[Tensor], *, learning_rate: float) -> int:
        """See `GroupWeights.step`; the reply includes the new weights.

        Raises:
            RuntimeError: Rank 0 has ended.
        """
        for view, gradient in zip(self._gradient_views, gradients, strict=True):
            view.copy_(gradient)
        self._request(STEP, learning_rate)
        dist.send(self._gradients, dst=0, group=self._pair)
        return self._receive()

    def copy_to(self, parameters: Sequence[nn.Parameter]) -> None:
        """See `GroupWeights.copy_to`; weights that `step` has received are not requested again."""
        if not self._is_fresh:
            self._request(READ)
            self._receive()
        with torch.no_grad():
            for parameter, weight in zip(parameters, self._weight_views, strict=True):
                parameter.copy_(weight)
        self._is_fresh = False

    def close(self) -> None:
        """End the thread that serves this rank."""
        self._request(END)

    def _request(self, kind: float, learning_rate: float = 0.0) -> None:
        # float64 transfers the learning rate without rounding.
        request = torch.tensor([kind, learning_rate], dtype=torch.float64)
        dist.send(request, dst=0, group=self._pair)

    def _receive(self) -> int:
        staleness = torch.empty(1, dtype=torch.int64)
        dist.recv(staleness, src=0, group=self._pair)
        dist.recv(self._weights, src=0, group=self._pair)
        self._is_fresh = True
        return int(staleness)


def gradient_buffer(parameters: Sequence[nn.Parameter], *, compress: bool) -> Tensor:
    """Return a buffer for all gradients, in the order and layout of the weights."""
    return torch.empty(
        count_values(parameters), dtype=torch.bfloat16 if compress else torch.float32
    )


class WeightsServer:
    """Rank 0's threads, one for each other group."""

    def __init__(
        self,
        pairs: Mapping[int, dist.ProcessGroup],
        parameters: Sequence[nn.Parameter],
        make_view: Callable[[], GroupWeights],
        *,
        compress: bool,
        begin_thread: Callable[[], None],
    ) -> None:
        """Begin to serve the first rank of each group, over its process group with rank 0.

        `make_view` opens the weights for each thread; `begin_thread` is called first in each.
        """
        self._parameters = parameters
        self._compress = compress
        self._begin_thread = begin_thread
        self._threads = [
            Thread(
                target=self._serve,
                args=(rank, pair, make_view()),
                name=f"weights for rank {rank}",
                daemon=True,
            )
            for rank, pair in pairs.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self, *, timeout_s: float) -> None:
        """Wait until all remaining ranks have closed their weights."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _serve(self, rank: int, pair: dist.ProcessGroup, weights: GroupWeights) -> None:
        self._begin_thread()
        gradients = gradient_buffer(self._parameters, compress=self._compress)
        gradient_views = list(placed(gradients, self._parameters))
        values = torch.empty(count_values(self._parameters))
        copies = [nn.Parameter(view) for view in placed(values, self._parameters)]
        request = torch.empty(2, dtype=torch.float64)
        staleness = torch.zeros(1, dtype=torch.int64)
        # gloo raises RuntimeError if the rank has ended, which the watchdog reports.
        with suppress(RuntimeError):
            while True:
                dist.recv(request, src=rank, group=pair)
                kind, learning_rate = request.tolist()
                if kind == END:
                    return
                if kind == STEP:
                    dist.recv(gradients, src=rank, group=pair)
                # The lock is not held while the network transfers: other groups may update
                # meanwhile.
                with weights.held():
                    if kind == STEP:
                        # Gradients may be BF16, whereas the shared weights and their state are
                        # float32.
                        floats = [gradient.float() for gradient in gradient_views]
                        staleness[0] = weights.step(floats, learning_rate=learning_rate)
                    weights.copy_to(copies)
                dist.send(staleness, dst=rank, group=pair)
                dist.send(values, dst=rank, group=pair)
