"""One model's weights, which compute groups read and update without waiting for one another.

Hadjis et al. 2016, "Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and GPUs", arXiv
1606.04487, section 3: a group computes a gradient at the weights that it has read, and by the time
it is applied others may have updated them. Weights and optimizer state lie in memory that the ranks
of a host share; a group's first rank takes the optimizer's step there itself.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retinanet.engine.layout import is_one_block
from retinanet.engine.shared_memory import LINE, MemoryPlace, SharedMemory, map_memory

VALUES_OF_A_LINE = LINE // 4
VERSION_AT = LINE
"""Behind the name. [bytes]"""
VALUES_AT = 2 * LINE
SECONDS_BETWEEN_TRIES = 0.0005

SLOTS = {
    "adam": ("exp_avg", "exp_avg_sq"),
    "lamb": ("exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
}
"""What each optimizer keeps of a parameter, under torch's names."""
COUNTING = ("adam", "lamb")
"""Those that keep the number of its steps too."""

MakeOptimizer = Callable[[nn.Module], Optimizer]
"""Such as `make_optimizer` with all but the model told."""


class GroupWeights:
    """The weights as one rank sees them."""

    def __init__(
        self,
        place: MemoryPlace,
        parameters: Sequence[nn.Parameter],
        *,
        optimizer: str,
        make: MakeOptimizer,
        timeout_s: float,
    ) -> None:
        """Map what `memory_of_weights` has made.

        Args:
            place: Of that memory.
            parameters: This rank's own that train, float32; only their layout is looked at.
            optimizer: `adam`, `lamb` or `sgd`.
            make: Makes it.
            timeout_s: How long to wait for others, each of whom is done in less than a second.

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
        counts, *blocks = split_values(values, parameters, slots)
        self._weights = [nn.Parameter(one) for one in placed(blocks[0], parameters)]
        self.optimizer = make(nn.ParameterList(self._weights))
        if optimizer in COUNTING:
            for index, weight in enumerate(self._weights):
                self.optimizer.state[weight]["step"] = counts[index]
        for slot, block in zip(slots, blocks[1:], strict=True):
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
        """Keep all others out meanwhile; a process that ends lets go, however it ends.

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
                    text = (
                        f"timed out: another group has kept the weights for {self._timeout_s:g} s"
                    )
                    raise TimeoutError(text) from None
            time.sleep(SECONDS_BETWEEN_TRIES)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def step(self, gradients: Sequence[Tensor], *, learning_rate: float) -> int:
        """Take the optimizer's step while they are held.

        Args:
            gradients: Of the rank's own parameters, in their order, at what it has last read.
            learning_rate: Of this step.

        Returns:
            The staleness: how many updates of others came between that reading and this step.
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
    """Memory for such weights and an optimizer's state; its maker closes it once all have mapped.

    Raises:
        OSError: There is not so much memory.
    """
    return SharedMemory(bytes_of_weights(parameters, SLOTS[optimizer]))


def bytes_of_weights(parameters: Sequence[nn.Parameter], slots: Sequence[str]) -> int:
    """Of all that is shared."""
    return VALUES_AT + 4 * (lines_of(len(parameters)) + values_of(parameters) * (1 + len(slots)))


def split_values(
    values: Tensor, parameters: Sequence[nn.Parameter], slots: Sequence[str]
) -> list[Tensor]:
    """The numbers of steps, the weights, and each slot: parts of one long tensor."""
    size = values_of(parameters)
    return list(values.split([lines_of(len(parameters)), *[size] * (1 + len(slots))]))


def placed(block: Tensor, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    """Parts of a block in the shapes and memory layouts of parameters, each on lines of its own."""
    start = 0
    for one in parameters:
        assert one.dtype == torch.float32 and is_one_block(one)
        yield block[start : start + one.numel()].as_strided(one.shape, one.stride())
        start += lines_of(one.numel())


def values_of(parameters: Sequence[nn.Parameter]) -> int:
    """How many numbers a block has, the ends of lines included."""
    return sum(lines_of(one.numel()) for one in parameters)


def lines_of(count: int) -> int:
    """So many numbers, rounded up to whole lines."""
    return -(-count // VALUES_OF_A_LINE) * VALUES_OF_A_LINE
