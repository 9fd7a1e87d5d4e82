"""A run's checkpoints as all ranks see them: each adds what it has of its own, rank 0 writes.

TODO-DOC Writes a run's checkpoints while training goes on, and keeps the last ones and the best.

TODO-DOC When a run's next checkpoint is due.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

from torch import nn
from torch.optim import Optimizer

from common.errors import InputError
from launch.process_group import ProcessGroup
from retinanet.config_types import interval_of
from retinanet.training.checkpoint import (
    BEST,
    LAST,
    Checkpoint,
    Contents,
    checkpoint_folder,
    copies,
    newest_first,
    optimizer_tensors,
    point_to,
    remove_old,
    remove_unfinished,
    rewrite_state,
    step_of,
    write_checkpoint,
)
from retinanet.training.checkpoint_state import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RANKS_FILE,
    State,
    TrainingPosition,
    read_state,
)
from retinanet.training.distributed import averaged_norms, numbered, own_state


class Checkpointer:
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
        self._clock = CheckpointTimer(every)
        self._keeper = CheckpointWriter(checkpoints, keep=keep, warn=warn)

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


class CheckpointWriter:
    """Of rank 0, for one run. A write that fails is a warning: what was there before stays."""

    def __init__(self, checkpoints: Path, *, keep: int, warn: Callable[[str], None]) -> None:
        """Keep the checkpoints below a folder.

        Args:
            checkpoints: `runs/NAME/checkpoints`.
            keep: How many of the last stay, beside the best.
            warn: Told, in a line, of each that could not be written.
        """
        self._checkpoints = checkpoints
        self._keep = keep
        self._warn = warn
        self._thread: Thread | None = None
        self._error: OSError | None = None
        self._step: int | None = None
        self.problem = ""
        """Why the last one could not be written."""
        self.seconds = 0.0
        """That the last one took to be on the disk, beside the training."""

    def go_on_from(self, checkpoint: Checkpoint) -> list[str]:
        """Tidy up around the checkpoint that a run is resumed from.

        Newer ones, which are damaged, and which the run makes again, get another name. Links that
        a kill has left behind are set.

        Returns:
            What there is to say of it.
        """
        here = checkpoint.position
        remove_unfinished(self._checkpoints)
        said = []
        for folder in newest_first(self._checkpoints):
            if step_of(folder) > here.step:
                said.append(set_aside(folder))
        self._link(checkpoint.folder, here)
        self._step = here.step
        return said

    def has(self, step: int) -> bool:
        """Whether the checkpoint after so many steps is on the disk, once all writing has ended."""
        self.settle()
        return self._step == step

    @property
    def is_writing(self) -> bool:
        """Whether an earlier one is not on the disk yet."""
        self._collect(wait=False)
        return self._thread is not None

    def write(self, contents: Contents) -> None:
        """Begin to write; waits only for an earlier one's end."""
        self.settle()
        self._step = contents.state.position.step
        self._thread = Thread(target=self._write, args=(contents,), name="checkpoint")
        self._thread.start()

    def settle(self) -> None:
        """Wait until what is being written is on the disk, or has failed."""
        self._collect(wait=True)

    def evaluated(self, position: TrainingPosition) -> None:
        """Note in the checkpoint of this step what an evaluation of its weights has given."""
        folder = checkpoint_folder(self._checkpoints, position.step)
        try:
            rewrite_state(folder, replace(read_state(folder), position=position))
            self._link(folder, position)
            remove_old(self._checkpoints, keep=self._keep)
        except OSError as error:
            self._failed(error)

    def _write(self, contents: Contents) -> None:
        start = time.perf_counter()
        try:
            folder = checkpoint_folder(self._checkpoints, contents.state.position.step)
            write_checkpoint(folder, contents)
            self.seconds = time.perf_counter() - start
            self._link(folder, contents.state.position)
            remove_old(self._checkpoints, keep=self._keep)
        except OSError as error:
            self._error = error

    def _link(self, folder: Path, position: TrainingPosition) -> None:
        point_to(self._checkpoints / LAST, folder)
        if position.map_here is not None and position.map_here == position.best_map:
            point_to(self._checkpoints / BEST, folder)

    def _collect(self, *, wait: bool) -> None:
        if self._thread is None or (self._thread.is_alive() and not wait):
            return
        self._thread.join()
        self._thread = None
        self.problem = ""
        error, self._error = self._error, None
        if error is not None:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        step, self._step = self._step, None
        self.problem = error.strerror or str(error)
        kept = newest_first(self._checkpoints)
        stays = f"{kept[0].name} stays" if kept else "there is none yet"
        self._warn(
            f"warning: {self._checkpoints}: the checkpoint after step {step} could not be "
            f"written: {self.problem}; {stays}, training goes on"
        )


def set_aside(folder: Path) -> str:
    """Give a damaged checkpoint a name that no run uses; returns what to say of it."""
    aside = folder.with_name(f"damaged-{folder.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = folder.with_name(f"damaged-{folder.name}-{number}")
    folder.rename(aside)
    return f"{folder.name} is damaged: it is now {aside.name}"


class CheckpointTimer:
    """Of rank 0, whose word counts for all ranks."""

    def __init__(self, every: str) -> None:
        """`every`: as in the configuration; see `retinanet.config_types`."""
        self._interval = interval_of(every)
        self._last_time = time.monotonic()
        self._last_step = 0
        self._last_epoch = 0.0

    def restart(self, *, step: int, epoch: float) -> None:
        """Count from here on: a checkpoint was begun after `step` steps and `epoch` epochs."""
        self._last_time, self._last_step, self._last_epoch = time.monotonic(), step, int(epoch)

    def is_due(self, *, step: int, epoch: float) -> bool:
        """Whether it is time for the next one, after `step` steps and `epoch` epochs in all."""
        count = self._interval.count
        if self._interval.unit == "seconds":
            return time.monotonic() - self._last_time >= count
        if self._interval.unit == "steps":
            return step // count > self._last_step // count
        return int(epoch) // count > int(self._last_epoch) // count
