"""Who is told where each training step is: nobody, unless a profile was asked for."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from retinanet.engine.engines import PreparedTraining

NOTHING = nullcontext()


class Phases(Protocol):
    """Is told where each step begins and ends, and each phase in it.

    A step is one of the optimizer: from waiting for its images until its weights are there. Its
    phases are `data` (the wait, also for other ranks' images), `forward`, `loss`, `backward` (the
    exchange of gradients included) and `optimizer`; where a step has several batches, the middle
    three come once for each. What the run does between two steps belongs to neither.
    """

    def notes(self, steps: range) -> list[str]:
        """What there is to say before a run takes these steps."""

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """Around a step, counted from 1 over the whole run, of this model."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Around a phase of the step."""


class Unwatched:
    """`Phases` that does nothing."""

    def notes(self, steps: range) -> list[str]:
        """None."""
        return []

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """Nothing."""
        return NOTHING

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Nothing."""
        return NOTHING


UNWATCHED = Unwatched()
