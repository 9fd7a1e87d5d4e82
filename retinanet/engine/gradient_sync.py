"""Averages of the ranks' gradients during the backward pass: torch's DDP, on CPUs."""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from retinanet.engine.shared_gradients import SharedGradients

Losses = dict[str, Tensor]


class GradientExchange:
    """`exchange(batch)` returns the losses of a batch; their backward pass averages gradients.

    Every rank calls it at the same steps, with batches of its own. Afterwards each parameter's
    gradient is that of one process with all the images: losses are means over a rank's images, and
    a rank counts in the average by its part of all images.
    """

    def __init__(
        self,
        model: nn.Module,
        losses_of: Callable[[Any], Losses],
        *,
        compress: str,
        shared: SharedGradients | None = None,
        weight: float | None = None,
        ranks: dist.ProcessGroup | None = None,
    ) -> None:
        """Wrap the model in DDP, which owns its gradients from now on.

        Args:
            model: Equal on all ranks.
            losses_of: Runs it on a batch.
            compress: `bf16` halves the bytes and rounds each rank's gradients; `none`.
            shared: The way through memory, where all ranks are on one host, made for the same
                `compress`; else the process group's backend is the way.
            weight: Of this rank in the average: its part of all images; None: all have as many.
            ranks: Those that average; None: all of the job.
        """
        self.exposed_seconds = 0.0
        """Of the last backward pass: from the last gradient until all were averaged."""
        self._shared = shared
        self._ranks = ranks
        self._weight = 1 / dist.get_world_size(ranks) if weight is None else weight
        self._compresses = compress == "bf16"
        self._holds_back = False
        self._last_ready = 0.0
        self._module = DistributedDataParallel(
            _LossesModule(model, losses_of),
            process_group=ranks,
            init_sync=False,
            gradient_as_bucket_view=True,
            static_graph=True,
            **buffers_left_alone(),
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
        """Return `shared memory`, `gloo` or `ccl`."""
        return "shared memory" if self._shared is not None else str(dist.get_backend(self._ranks))

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let backward passes add to this rank's own gradients; the next one after averages all.

        Not DDP's `no_sync`: with a static graph, torch 2.8's stops averaging for good.
        """
        self._holds_back = True
        try:
            yield
        finally:
            self._holds_back = False

    def _reduce(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Start to average a part of the gradients; DDP copies the result to where they are.

        torch's own hook for BF16 does that copy in a thread of gloo, where it would start compute
        threads anew, beside those that compute.
        """
        self._last_ready = time.perf_counter()
        gradients = bucket.buffer()
        if self._holds_back:
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(gradients)
            return done
        if self._shared is not None:
            return self._shared.average(
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


def buffers_left_alone() -> dict[str, Any]:
    """Return DDP's argument for it: newer torch has another name, and warns of torch 2.8's."""
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    newer = "forward_sync_buffers" in names
    return {"forward_sync_buffers" if newer else "broadcast_buffers": False}


class _LossesModule(nn.Module):
    """The module for DDP, whose outputs lead to all gradients: two numbers, not large logits."""

    def __init__(self, model: nn.Module, losses_of: Callable[[Any], Losses]) -> None:
        super().__init__()
        self.model = model
        self._losses_of = losses_of

    def forward(self, batch: Any) -> Any:
        return self._losses_of(batch)
