"""A run's checkpoints as all ranks see them: each adds what it has of its own, rank 0 writes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from launch.group.process_group import ProcessGroup
from retinanet.errors import InputError
from retinanet.training.agreement import averaged_norms
from retinanet.training.checkpoint.clock import CheckpointClock
from retinanet.training.checkpoint.keeper import CheckpointKeeper
from retinanet.training.checkpoint.reading import MODEL_FILE, OPTIMIZER_FILE, RANKS_FILE, Checkpoint
from retinanet.training.checkpoint.state import State, TrainingPosition
from retinanet.training.checkpoint.writing import Contents, copies, write_checkpoint
from retinanet.training.optimizer_state import optimizer_tensors
from retinanet.training.rank_states import numbered, own_state


class Saving:
    """When checkpoints are written, and by whom. All ranks call all of it, at the same steps."""

    def __init__(
        self,
        checkpoints: Path,
        *,
        every: str,
        keep: int,
        group: ProcessGroup,
        warn: Callable[[str], None],
    ) -> None:
        """Write below a folder.

        Args:
            checkpoints: `runs/NAME/checkpoints`.
            every: How often, as in the configuration.
            keep: How many of the last stay, beside the best.
            group: The ranks.
            warn: Told on rank 0, in a line, of each that could not be written.
        """
        self._checkpoints = checkpoints
        self._group = group
        self._clock = CheckpointClock(every)
        self._keeper = CheckpointKeeper(checkpoints, keep=keep, warn=warn)

    def go_on_from(self, checkpoint: Checkpoint, *, epoch: float) -> list[str]:
        """Tidy up around the one that the run is resumed from; returns what to say of it."""
        self._clock.restart(step=checkpoint.position.step, epoch=epoch)
        return self._keeper.go_on_from(checkpoint)

    def regroup(self, group: ProcessGroup) -> None:
        """Go on with the ranks that are left."""
        self._group = group

    def is_due(self, *, step: int, epoch: float) -> bool:
        """Whether rank 0 should begin another now; False on all others."""
        if not self._group.is_first or self._keeper.is_writing:
            return False
        return self._clock.is_due(step=step, epoch=epoch)

    def begin(self, model: nn.Module, optimizer: Optimizer, state: State, *, epoch: float) -> None:
        """Begin to write, unless this step's is there; training may go on."""
        step = state.position.step
        if self._group.from_first(lambda: self._keeper.has(step)):
            return
        contents = gathered(self._group, model, optimizer, state)
        if contents is not None:
            self._keeper.write(contents)
        self._clock.restart(step=step, epoch=epoch)

    def is_there(self, step: int) -> bool:
        """Whether the checkpoint after so many steps is on the disk, once writing has ended."""
        return self._group.from_first(lambda: self._keeper.has(step))

    def problem(self) -> str:
        """Why the last one could not be written."""
        return self._group.from_first(lambda: self._keeper.problem)

    def evaluated(self, position: TrainingPosition) -> None:
        """Note on rank 0, in the checkpoint of this step, what an evaluation has given."""
        if self._group.is_first:
            self._keeper.evaluated(position)

    def autopsy(
        self, model: nn.Module, optimizer: Optimizer, state: State, *, report: dict[str, Any]
    ) -> Path:
        """Write what a step that failed began with, and a report; returns the folder.

        Raises:
            InputError: It cannot be written.
        """
        folder = self._checkpoints / f"nonfinite-{state.position.step + 1:06d}"
        contents = gathered(self._group, model, optimizer, state)
        if contents is not None:
            self._keeper.settle()
            try:
                texts = {"report.json": json.dumps(report, indent=1)}
                write_checkpoint(folder, contents, texts=texts)
            except OSError as error:
                raise InputError(f"{folder}: cannot be written: {error.strerror}") from error
        return folder


def gathered(
    group: ProcessGroup, model: nn.Module, optimizer: Optimizer, state: State
) -> Contents | None:
    """Copies of all that a checkpoint has, on rank 0; None on others. All ranks call it."""
    averaged = averaged_norms(group, model)
    states = group.gather(own_state(model, with_statistics=bool(averaged)))
    if states is None:
        return None
    parts = {
        MODEL_FILE: {**copies(model.state_dict()), **averaged},
        OPTIMIZER_FILE: copies(optimizer_tensors(model, optimizer)),
    }
    if averaged:
        parts[RANKS_FILE] = numbered(states)
    return Contents(parts, replace(state, random_states=[one.random for one in states]))
