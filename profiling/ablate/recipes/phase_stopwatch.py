"""Seconds of a training step's phases, and of the loss's part of the backward pass."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor

from retinanet.engine.engines import Forward, PreparedTraining
from retinanet.model import HeadOutputs


class PhaseStopwatch:
    """The `Phases` of a training loop that remembers the last step's seconds."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._loss_done: float | None = None

    def notes(self, steps: range) -> list[str]:
        """None."""
        return []

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """A new step begins."""
        self._seconds = {}
        return nullcontext()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; the backward pass in two parts."""
        begin = time.perf_counter()
        self._loss_done = None
        yield
        end = time.perf_counter()
        if name == "backward":
            assert self._loss_done is not None, "the loss does not depend on the network"
            self._seconds["loss backward"] = self._loss_done - begin
            self._seconds["network backward"] = end - self._loss_done
        self._seconds[name] = end - begin

    def laps(self) -> dict[str, float]:
        """Of the last step: `forward`, `loss`, `backward` and its two parts, `optimizer`."""
        return {name: seconds for name, seconds in self._seconds.items() if name != "data"}

    def watching(self, forward: Forward) -> Forward:
        """The same, with a note of when the backward pass comes to the first of its outputs.

        autograd takes what was computed last first, so that the loss's part is over by then. A hook
        runs when its tensor's turn comes, and not when its gradient is there: the first one counts.
        """

        def watched(images: Tensor) -> HeadOutputs:
            outputs = forward(images)
            for one in (*outputs.cls_logits, *outputs.bbox_regression):
                one.register_hook(self._note)
            return outputs

        return watched

    def _note(self, gradient: Tensor) -> None:
        if self._loss_done is None:
            self._loss_done = time.perf_counter()
