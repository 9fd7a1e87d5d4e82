"""The optimizer's step of a compute group: on the common weights, which all its ranks then have."""

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from launch.group.process_group import ProcessGroup
from retinanet.engine.group_weights import GroupWeights
from retinanet.engine.served_weights import ServedWeights, WeightsServer


class GroupUpdate:
    """Called by every rank of a group, when their average gradients are there."""

    def __init__(
        self,
        weights: GroupWeights | ServedWeights | None,
        parameters: Sequence[nn.Parameter],
        *,
        group: ProcessGroup,
        is_in_memory: bool,
        server: WeightsServer | None = None,
    ) -> None:
        """Take steps on these weights.

        Args:
            weights: As this rank sees them; None where the group's first rank tells them.
            parameters: This rank's own that train.
            group: Its compute group.
            is_in_memory: Whether all ranks of the job have the weights in their memory.
            server: On rank 0, where they have not.
        """
        self._weights = weights
        self._parameters = parameters
        self._group = group
        self._is_in_memory = is_in_memory
        self._server = server

    @property
    def way(self) -> str:
        """`shared memory` or `gloo`."""
        return "shared memory" if self._is_in_memory else "gloo"

    def begin(self) -> None:
        """Read the weights as they are now; every rank of the group calls it."""
        self._update(learning_rate=None)

    def __call__(self, learning_rate: float) -> int:
        """Take a step with the gradients, let go of them, and read the weights.

        Returns:
            Its staleness, see `GroupWeights.step`; on the group's first rank.

        Raises:
            TimeoutError: Another group keeps the weights for too long.
        """
        staleness = self._update(learning_rate=learning_rate)
        for one in self._parameters:
            one.grad = None
        return staleness

    def _update(self, *, learning_rate: float | None) -> int:
        """Take a step if there is a learning rate, and read the weights that all then have."""
        staleness = 0
        if self._group.is_first:
            staleness = self._update_as_first(learning_rate)
        elif self._is_in_memory:
            self._read_with_first()
        if not self._is_in_memory:
            self._group.broadcast(one.detach() for one in self._parameters)
        return staleness

    def _update_as_first(self, learning_rate: float | None) -> int:
        assert self._weights is not None
        staleness = 0
        with self._weights.held():
            if learning_rate is not None:
                gradients = [one.grad for one in self._parameters if one.grad is not None]
                staleness = self._weights.step(gradients, learning_rate=learning_rate)
            self._weights.copy_to(self._parameters)
            if self._is_in_memory:
                self._group.barrier()  # the others begin to read
                self._group.barrier()  # and are done
        return staleness

    def _read_with_first(self) -> None:
        """Without holding them: the first does, and it waits for this."""
        assert self._weights is not None
        self._group.barrier()
        self._weights.copy_to(self._parameters)
        self._group.barrier()

    def take_back(self, optimizer: Optimizer) -> None:
        """On rank 0, while nobody trains: put weights and the optimizer's state into its own."""
        assert isinstance(self._weights, GroupWeights)
        self._weights.take_back(self._parameters, optimizer)

    def close(self, *, timeout_s: float) -> None:
        """Part from the weights; every rank that is left calls it once."""
        if isinstance(self._weights, ServedWeights):
            self._weights.close()
        if self._server is not None:
            self._server.close(timeout_s=timeout_s)
