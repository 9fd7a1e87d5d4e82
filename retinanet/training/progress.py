"""The progress of a run: the trainer moves it on, checkpoints have it under `position`."""

from dataclasses import replace
from typing import Annotated, Self

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from common.errors import InputError

STRICT = ConfigDict(extra="forbid", strict=True)
Count = Annotated[int, Field(ge=0, lt=2**63)]


@pydantic.dataclasses.dataclass(config=STRICT, frozen=True, kw_only=True)
class Progress:
    """The progress of a run, the same on all ranks, under the names of `state.json`."""

    step: Count  # Optimizer steps done
    epoch: Count  # Epochs done
    images: Count  # Places of the running epoch's order that are done; see `training_keys`
    images_per_epoch: Count  # Places of the order: the training images, repeated ones included
    map_here: float | None  # mAP of the weights at this step; None if they were not evaluated
    best_map: float | None  # Highest mAP of an evaluation so far
    evaluations_since_best: Count = 0  # Evaluations after the one with the highest mAP
    skipped_steps: Count = 0  # Steps whose loss or gradient was not finite, among the steps done

    def after(self, step: int, position: tuple[int, int]) -> Self:
        """Return the progress after `step` steps, at a position of the plan, not evaluated."""
        epoch, images = position
        return replace(self, step=step, epoch=epoch, images=images, map_here=None)

    def evaluated(self, value: float) -> Self:
        """Return the progress with the mAP of these weights, compared with the best."""
        is_better = self.best_map is None or value > self.best_map
        return replace(
            self,
            map_here=value,
            best_map=value if is_better else self.best_map,
            evaluations_since_best=0 if is_better else self.evaluations_since_best + 1,
        )

    def require_consistent(self) -> None:
        """Check the relations between fields that are each valid on their own.

        Raises:
            InputError: Names a field and its value.
        """
        for name in ("epoch", "evaluations_since_best", "skipped_steps"):
            if getattr(self, name) > self.step:
                value = getattr(self, name)
                raise InputError(f"position.{name}: {value}, but step is {self.step}")
        if self.images > (self.images_per_epoch if self.step else 0):
            limit = f"images_per_epoch is {self.images_per_epoch}, step is {self.step}"
            raise InputError(f"position.images: {self.images}, but {limit}")
        current, best = self.map_here, self.best_map
        for name, map_value in (("map_here", current), ("best_map", best)):
            if map_value is not None and not 0 <= map_value <= 1:
                raise InputError(f"position.{name}: {map_value} is not from 0 to 1")
        if current is not None and (best is None or best < current):
            raise InputError(f"position.best_map: {best}, but map_here is {current}")


START = Progress(step=0, epoch=0, images=0, images_per_epoch=0, map_here=None, best_map=None)
"""The progress before the first step."""
