"""The common weights of compute groups as a rank on another host sees them: by way of rank 0.

A thread of rank 0 for each such group takes its gradients, takes the optimizer's step with them,
and gives back the weights as they are then.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor, nn

from retinanet.engine.group_weights import GroupWeights, placed, values_of

STEP, READ, END = 1.0, 2.0, 3.0
"""What a rank asks for."""


class ServedWeights:
    """Stands in for `GroupWeights` where those are on another host."""

    def __init__(
        self, pair: dist.ProcessGroup, parameters: Sequence[nn.Parameter], *, compress: bool
    ) -> None:
        """Ask over a group of two ranks, this one and the job's rank 0.

        Args:
            pair: The two.
            parameters: This rank's own that train.
            compress: Whether gradients travel in BF16.
        """
        self._pair = pair
        self._gradients = gradient_buffer(parameters, compress=compress)
        self._gradient_views = list(placed(self._gradients, parameters))
        self._weights = torch.empty(values_of(parameters))
        self._weight_views = list(placed(self._weights, parameters))
        self._is_fresh = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing to do: rank 0 holds them while it takes a step, or reads."""
        yield

    def step(self, gradients: Sequence[Tensor], *, learning_rate: float) -> int:
        """See `GroupWeights.step`; the new weights come back with the answer.

        Raises:
            RuntimeError: Rank 0 has ended.
        """
        for view, gradient in zip(self._gradient_views, gradients, strict=True):
            view.copy_(gradient)
        self._ask(STEP, learning_rate)
        dist.send(self._gradients, dst=0, group=self._pair)
        return self._hear()

    def copy_to(self, parameters: Sequence[nn.Parameter]) -> None:
        """See `GroupWeights.copy_to`; what a step has just brought is not asked for again."""
        if not self._is_fresh:
            self._ask(READ)
            self._hear()
        with torch.no_grad():
            for own, weight in zip(parameters, self._weight_views, strict=True):
                own.copy_(weight)
        self._is_fresh = False

    def close(self) -> None:
        """Say that nothing more will be asked."""
        self._ask(END)

    def _ask(self, what: float, learning_rate: float = 0.0) -> None:
        question = torch.tensor([what, learning_rate], dtype=torch.float64)
        dist.send(question, dst=0, group=self._pair)

    def _hear(self) -> int:
        staleness = torch.empty(1, dtype=torch.int64)
        dist.recv(staleness, src=0, group=self._pair)
        dist.recv(self._weights, src=0, group=self._pair)
        self._is_fresh = True
        return int(staleness)


def gradient_buffer(parameters: Sequence[nn.Parameter], *, compress: bool) -> Tensor:
    """Room for all gradients, in the order and layout of the weights, as they travel."""
    return torch.empty(values_of(parameters), dtype=torch.bfloat16 if compress else torch.float32)


class WeightsServer:
    """Rank 0's threads, one for each group that is not on its host."""

    def __init__(
        self,
        pairs: Sequence[tuple[int, dist.ProcessGroup]],
        parameters: Sequence[nn.Parameter],
        *,
        make_view: Callable[[], GroupWeights],
        compress: bool,
        begin_thread: Callable[[], None],
    ) -> None:
        """Begin to serve.

        Args:
            pairs: The first rank of each group, and its group with rank 0.
            parameters: As on all ranks.
            make_view: The weights, once for each thread.
            compress: See `ServedWeights`.
            begin_thread: Called first in each thread.
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
            for rank, pair in pairs
        ]
        for thread in self._threads:
            thread.start()

    def close(self, *, timeout_s: float) -> None:
        """Wait until all that are left have said that they are done."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _serve(self, rank: int, pair: dist.ProcessGroup, weights: GroupWeights) -> None:
        self._begin_thread()
        gradients = gradient_buffer(self._parameters, compress=self._compress)
        gradient_views = list(placed(gradients, self._parameters))
        values = torch.empty(values_of(self._parameters))
        copies = [nn.Parameter(one) for one in placed(values, self._parameters)]
        question = torch.empty(2, dtype=torch.float64)
        staleness = torch.zeros(1, dtype=torch.int64)
        with suppress(RuntimeError):  # the rank has ended, of which the watch tells
            while True:
                dist.recv(question, src=rank, group=pair)
                what, learning_rate = question.tolist()
                if what == END:
                    return
                if what == STEP:
                    dist.recv(gradients, src=rank, group=pair)
                with weights.held():
                    if what == STEP:
                        floats = [one.float() for one in gradient_views]
                        staleness[0] = weights.step(floats, learning_rate=learning_rate)
                    weights.copy_to(copies)
                dist.send(staleness, dst=rank, group=pair)
                dist.send(values, dst=rank, group=pair)
