"""The optimizer's step of a compute group: on the common weights, which all its ranks then have."""

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from launch.group.process_group import ProcessGroup
from retinanet.engine.group_weights import GroupWeights


class GroupUpdate:
    """Called by every rank of a group, when their average gradients are there."""

    def __init__(
        self, weights: GroupWeights, parameters: Sequence[nn.Parameter], *, group: ProcessGroup
    ) -> None:
        """Take steps on these weights.

        Args:
            weights: As this rank sees them.
            parameters: This rank's own that train.
            group: Its compute group.
        """
        self._weights = weights
        self._parameters = parameters
        self._group = group

    def begin(self) -> None:
        """Read the weights as they are now."""
        with self._weights.held():
            self._weights.copy_to(self._parameters)

    def __call__(self, learning_rate: float) -> int:
        """Take a step with the gradients, let go of them, and read the weights.

        Returns:
            Its staleness, see `GroupWeights.step`; on the group's first rank.

        Raises:
            TimeoutError: Another group keeps the weights for too long.
        """
        staleness = 0
        if self._group.is_first:
            gradients = [one.grad for one in self._parameters if one.grad is not None]
            with self._weights.held():
                staleness = self._weights.step(gradients, learning_rate=learning_rate)
                self._weights.copy_to(self._parameters)
                self._group.barrier()  # the others begin to read
                self._group.barrier()  # and are done
        else:
            self._group.barrier()
            self._weights.copy_to(self._parameters)
            self._group.barrier()
        for one in self._parameters:
            one.grad = None
        return staleness

    def take_back(self, optimizer: Optimizer) -> None:
        """Put weights and the optimizer's state into this rank's own, while nobody trains."""
        self._weights.take_back(self._parameters, optimizer)
