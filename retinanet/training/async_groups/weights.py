"""One model's weights, which compute groups read and update without waiting for one another.

Hadjis et al. 2016, "Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and GPUs", arXiv
1606.04487, section 3: a group computes a gradient at the weights that it has read, and by the time
it is applied others may have updated them. Weights and optimizer state lie in memory that the ranks
of a host share; a group's first rank takes the optimizer's step there itself.

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

VALUES_OF_A_LINE = LINE // 4
VERSION_AT = LINE  # Behind the name. [bytes]
VALUES_AT = 2 * LINE
SECONDS_BETWEEN_TRIES = 0.0005

SLOTS = {
    "adam": ("exp_avg", "exp_avg_sq"),
    "lamb": ("exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
}
"""State that each optimizer has of a parameter, under torch's names."""
COUNTING = ("adam", "lamb")  # Optimizers that count each parameter's steps too

MakeOptimizer = Callable[[nn.Module], Optimizer]
"""`make_optimizer` with all arguments but the model, for example."""


class GroupWeights:
    """The weights in shared memory as one rank sees them."""

    def __init__(
        self,
        place: MemoryPlace,
        parameters: Sequence[nn.Parameter],
        *,
        optimizer: str,
        make: MakeOptimizer,
        timeout_s: float,
    ) -> None:
        """Map the memory at `place`, which `memory_of_weights` has made.

        The parameters are this rank's own that train, float32; only their layout matters.
        `timeout_s` is how long to wait for others, each of whom is done in less than a second.

        Raises:
            OSError: The memory cannot be seen from here.
        """
        slots = SLOTS[optimizer]
        memory = map_memory(place, bytes_of_weights(parameters, slots))
        self._lock = os.open(place[0], os.O_RDWR)  # of its own: what opens it twice excludes itself
        self._timeout_s = timeout_s
        self._version = torch.frombuffer(
            memory.mapped, dtype=torch.int64, count=1, offset=VERSION_AT
        )
        values = torch.frombuffer(memory.mapped, dtype=torch.float32, offset=VALUES_AT)
        size = values_of(parameters)
        counts, block, *blocks = values.split(
            [lines_of(len(parameters)), *[size] * (1 + len(slots))]
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
        """Put in a rank's own weights, and its optimizer's state if it has one; one rank does."""
        with torch.no_grad():
            for weight, own in zip(self._weights, parameters, strict=True):
                weight.copy_(own)
                state = self.optimizer.state[weight]
                for slot, value in optimizer.state.get(own, {}).items():
                    if value is not None:
                        state[slot].copy_(value)

    def take_back(self, parameters: Sequence[nn.Parameter], optimizer: Optimizer) -> None:
        """Put weights and state into a rank's own parameters and optimizer, once nobody updates."""
        self.copy_to(parameters)
        for weight, own in zip(self._weights, parameters, strict=True):
            state = optimizer.state[own]
            for slot, value in self.optimizer.state[weight].items():
                if slot in state and state[slot] is not None:
                    state[slot].copy_(value)
                else:
                    state[slot] = value.clone()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock out all others meanwhile; the lock ends with the process, however it ends.

        Raises:
            TimeoutError: Another rank keeps them for too long.
        """
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"timed out: another group has kept the weights for {self._timeout_s:g} s"
                    ) from None
            time.sleep(SECONDS_BETWEEN_TRIES)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def step(self, gradients: Sequence[Tensor], *, learning_rate: float) -> int:
        """Run the optimizer's step while the weights are held; return the staleness.

        The gradients are of the rank's own parameters, in their order, at the weights that it has
        last read. The staleness is how many updates of others came between that and this step.
        """
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        for settings in self.optimizer.param_groups:
            settings["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        staleness = int(self._version) - self._read
        self._version += 1
        return staleness

    def copy_to(self, parameters: Sequence[nn.Parameter]) -> None:
        """Read the weights, while they are held or nobody updates them."""
        with torch.no_grad():
            for own, weight in zip(parameters, self._weights, strict=True):
                own.copy_(weight)
        self._read = int(self._version)


def memory_of_weights(parameters: Sequence[nn.Parameter], *, optimizer: str) -> SharedMemory:
    """Make memory for weights and an optimizer's state; close it once all ranks have mapped it.

    Raises:
        OSError: There is not so much memory.
    """
    return SharedMemory(bytes_of_weights(parameters, SLOTS[optimizer]))


def bytes_of_weights(parameters: Sequence[nn.Parameter], slots: Sequence[str]) -> int:
    """Return the size of all that is shared. [bytes]"""
    return VALUES_AT + 4 * (lines_of(len(parameters)) + values_of(parameters) * (1 + len(slots)))


def placed(block: Tensor, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    """Yield parts of a block with the parameters' shapes and layouts, each on its own lines."""
    start = 0
    for parameter in parameters:
        assert parameter.dtype == torch.float32 and is_one_block(parameter)
        size = parameter.numel()
        yield block[start : start + size].as_strided(parameter.shape, parameter.stride())
        start += lines_of(size)


def values_of(parameters: Sequence[nn.Parameter]) -> int:
    """Return how many numbers a block has, the ends of lines included."""
    return sum(lines_of(parameter.numel()) for parameter in parameters)


def lines_of(count: int) -> int:
    """Return `count` rounded up to whole cache lines of numbers."""
    return -(-count // VALUES_OF_A_LINE) * VALUES_OF_A_LINE


STEP, READ, END = 1.0, 2.0, 3.0  # Kinds of requests


class ServedWeights:
    """The weights as a rank on another host sees them, with the methods of `GroupWeights`."""

    def __init__(
        self, pair: dist.ProcessGroup, parameters: Sequence[nn.Parameter], *, compress: bool
    ) -> None:
        """Serve this rank's `parameters` over a pair: this rank and the job's rank 0.

        `compress`: whether gradients travel in BF16.
        """
        self._pair = pair
        self._gradients = gradient_buffer(parameters, compress=compress)
        self._gradient_views = list(placed(self._gradients, parameters))
        self._weights = torch.empty(values_of(parameters))
        self._weight_views = list(placed(self._weights, parameters))
        self._is_fresh = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do nothing: rank 0 locks them while it takes a step, or reads."""
        yield

    def step(self, gradients: Sequence[Tensor], *, learning_rate: float) -> int:
        """See `GroupWeights.step`; the new weights come back with the answer.

        Raises:
            RuntimeError: Rank 0 has ended.
        """
        for view, gradient in zip(self._gradient_views, gradients, strict=True):
            view.copy_(gradient)
        self._request(STEP, learning_rate)
        dist.send(self._gradients, dst=0, group=self._pair)
        return self._receive()

    def copy_to(self, parameters: Sequence[nn.Parameter]) -> None:
        """See `GroupWeights.copy_to`; weights that a step has just received are not sent again."""
        if not self._is_fresh:
            self._request(READ)
            self._receive()
        with torch.no_grad():
            for own, weight in zip(parameters, self._weight_views, strict=True):
                own.copy_(weight)
        self._is_fresh = False

    def close(self) -> None:
        """End the thread that serves this rank."""
        self._request(END)

    def _request(self, kind: float, learning_rate: float = 0.0) -> None:
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
    return torch.empty(values_of(parameters), dtype=torch.bfloat16 if compress else torch.float32)


class WeightsServer:
    """Rank 0's threads, one for each group that is not on its host."""

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

        `make_view` opens the weights once for each thread; `begin_thread` is called first in each.
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
        """Wait until all ranks that are left have closed their weights."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _serve(self, rank: int, pair: dist.ProcessGroup, weights: GroupWeights) -> None:
        self._begin_thread()
        gradients = gradient_buffer(self._parameters, compress=self._compress)
        gradient_views = list(placed(gradients, self._parameters))
        values = torch.empty(values_of(self._parameters))
        copies = [nn.Parameter(view) for view in placed(values, self._parameters)]
        request = torch.empty(2, dtype=torch.float64)
        staleness = torch.zeros(1, dtype=torch.int64)
        with suppress(RuntimeError):  # the rank has ended, which the watchdog reports
            while True:
                dist.recv(request, src=rank, group=pair)
                kind, learning_rate = request.tolist()
                if kind == END:
                    return
                if kind == STEP:
                    dist.recv(gradients, src=rank, group=pair)
                with weights.held():
                    if kind == STEP:
                        floats = [gradient.float() for gradient in gradient_views]
                        staleness[0] = weights.step(floats, learning_rate=learning_rate)
                    weights.copy_to(copies)
                dist.send(staleness, dst=rank, group=pair)
                dist.send(values, dst=rank, group=pair)
