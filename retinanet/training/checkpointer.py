"""Writes the checkpoints of a run: each rank contributes its state, rank 0 writes the files.

Rank 0 writes in a thread while training continues, and keeps the newest checkpoints and the best.
A failed write is a warning: earlier checkpoints are not touched.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from common.files import or_refused
from launch.process_group import ProcessGroup
from retinanet.config_types import BEST, parse_interval
from retinanet.training.agreement import averaged_norms
from retinanet.training.checkpoint import (
    LAST,
    Checkpoint,
    Contents,
    checkpoint_folder,
    checkpoint_step,
    copies,
    newest_first,
    optimizer_tensors,
    point_to,
    remove_old,
    remove_unfinished,
    rewrite_state,
    write_checkpoint,
)
from retinanet.training.ema import WeightAverage
from retinanet.training.progress import Progress
from retinanet.training.train_state import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RANKS_FILE,
    RAW_FILE,
    RankState,
    State,
    number_statistics,
    rank_state_dict,
    read_state,
    trained_norms,
)


class Checkpointer:
    """Writes a run's checkpoints. All ranks call its methods at the same steps, unless noted."""

    def __init__(
        self,
        checkpoints: Path,
        *,
        keep: int,
        warn: Callable[[str], None],
        every: str = "epoch",
        group: ProcessGroup | None = None,
    ) -> None:
        """Write to `runs/NAME/checkpoints`, and keep the newest `keep` and the best.

        `warn` is called on rank 0 with a message about each failed write. `every` is the interval
        in the form of the configuration.
        """
        self._checkpoints = checkpoints
        self._keep = keep
        self._warn = warn
        self._timer = CheckpointTimer(every)
        self.group = group or ProcessGroup()
        """The ranks of the job that have not ended."""
        self._thread: Thread | None = None
        self._error: OSError | None = None
        self._step: int | None = None
        self._problem = ""
        self.seconds = 0.0
        """Duration of the last write, until it was on the disk."""

    def resume_from(self, checkpoint: Checkpoint, *, epoch: float) -> list[str]:
        """Clean up the folder around the checkpoint that a run is resumed from; rank 0 calls it.

        Newer checkpoints are damaged. They are renamed, since the run will write these steps again;
        a note for the user is returned for each. Links that a killed run did not update are set.
        """
        position = checkpoint.position
        self._timer.restart(step=position.step, epoch=epoch)
        remove_unfinished(self._checkpoints)
        notes = []
        for folder in newest_first(self._checkpoints):
            if checkpoint_step(folder) > position.step:
                aside = folder.with_name(f"damaged-{folder.name}")
                # An earlier resume may have renamed a checkpoint of this step.
                numbers = count(2)
                while aside.exists():
                    aside = folder.with_name(f"damaged-{folder.name}-{next(numbers)}")
                folder.rename(aside)
                notes.append(f"{folder.name} is damaged and was renamed to {aside.name}")
        self._link(checkpoint.folder, position)
        # This checkpoint is on the disk, so `save` does not write the same step again.
        self._step = position.step
        return notes

    def is_due(self, *, step: int, epoch: float) -> bool:
        """Return whether rank 0 should write a checkpoint now; False on all other ranks."""
        # The timer is not restarted here: a checkpoint that is due during a write follows directly
        # after that write.
        if not self.group.is_first or self.is_writing:
            return False
        return self._timer.is_due(step=step, epoch=epoch)

    def save(self, gather: Callable[[], Contents | None], *, step: int, epoch: float) -> None:
        """Begin to write a checkpoint, unless that of this step exists; training may continue.

        `gather` is as `gathered`.
        """
        if self.is_there(step):
            return
        contents = gather()
        if contents is not None:
            self.write(contents)
        self._timer.restart(step=step, epoch=epoch)

    def is_there(self, step: int) -> bool:
        """Wait for the writer; return whether the checkpoint after `step` steps is on the disk."""

        def look() -> bool:
            self.wait()
            return self._step == step

        return self.group.from_first(look, bool)

    @property
    def problem(self) -> str:
        """The reason why the last write failed; empty if it did not."""
        return self.group.from_first(lambda: self._problem, str)

    def save_nonfinite(
        self, contents: Contents | None, *, step: int, report: dict[str, Any]
    ) -> Path:
        """Write the state before a step that was not finite, with a report; return the folder.

        `contents` are those of `gathered`, after `step` steps.

        Raises:
            InputError: It cannot be written.
        """
        folder = self._checkpoints / f"nonfinite-{step + 1:06d}"
        if contents is not None:
            self.wait()
            with or_refused(folder):
                texts = {"report.json": json.dumps(report, indent=1)}
                write_checkpoint(folder, contents, texts=texts)
        return folder

    def add_evaluation(self, position: Progress) -> None:
        """Write an evaluation's mAP into the checkpoint of its step; `best` follows the highest."""
        if not self.group.is_first:
            return
        folder = checkpoint_folder(self._checkpoints, position.step)
        try:
            # The state is read back because only the file has the hashes of the written tensors.
            rewrite_state(folder, replace(read_state(folder), position=position))
            self._link(folder, position)
            remove_old(self._checkpoints, keep=self._keep)
        except OSError as error:
            self._failed(error)

    @property
    def is_writing(self) -> bool:
        """Whether rank 0 is still writing the last checkpoint."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()
        return self._thread is not None

    def write(self, contents: Contents) -> None:
        """Begin to write on rank 0, after the previous write has ended."""
        self.wait()
        self._step = contents.state.position.step
        # A thread suffices, because safetensors releases Python's lock while it writes. A process
        # would need one more copy of the tensors, in shared memory that containers keep small.
        self._thread = Thread(target=self._write, args=(contents,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait on rank 0 until the current write has ended or failed."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        self._problem = ""
        # Reported here, not in the writing thread: it changes state that the main thread reads.
        error, self._error = self._error, None
        if error is not None:
            self._failed(error)

    def _write(self, contents: Contents) -> None:
        start = time.perf_counter()
        try:
            folder = checkpoint_folder(self._checkpoints, contents.state.position.step)
            write_checkpoint(folder, contents)
            self.seconds = time.perf_counter() - start
            # The links come first: `remove_old` keeps the checkpoints that they point to.
            self._link(folder, contents.state.position)
            remove_old(self._checkpoints, keep=self._keep)
        except OSError as error:
            self._error = error

    def _link(self, folder: Path, position: Progress) -> None:
        point_to(self._checkpoints / LAST, folder)
        if position.map_here is not None and position.map_here == position.best_map:
            point_to(self._checkpoints / BEST, folder)

    def _failed(self, error: OSError) -> None:
        # Without a step, `is_there` returns False, and the next `save` tries again.
        step, self._step = self._step, None
        self._problem = error.strerror or str(error)
        folders = newest_first(self._checkpoints)
        newest = f"{folders[0].name} is kept" if folders else "there is no earlier one"
        self._warn(
            f"warning: {self._checkpoints}: the checkpoint after step {step} could not be "
            f"written: {self._problem}; {newest}, training continues"
        )


def gathered(
    group: ProcessGroup,
    model: nn.Module,
    optimizer: Optimizer,
    state: State,
    average: WeightAverage | None = None,
) -> Contents | None:
    """Return copies of a checkpoint's contents on rank 0, None on others; all ranks call it."""
    averages = average.norms if average else {}
    # These calls are collective, so all ranks make them before rank 0 continues alone.
    averaged = averaged_norms(group, trained_norms(model))
    averaged_of_average = averaged_norms(group, averages)
    with_statistics = bool(averaged)
    states = gathered_states(
        group, rank_state_dict(model, with_statistics=with_statistics, averages=averages)
    )
    if states is None:
        return None
    parts = {
        # The model has the means over the ranks, for evaluation and for other numbers of ranks.
        # `ranks.safetensors` has each rank's own statistics, for a bitwise resume.
        MODEL_FILE: {**copies(model.state_dict()), **averaged},
        OPTIMIZER_FILE: copies(optimizer_tensors(model, optimizer)),
    }
    if average is not None:
        raw = parts[MODEL_FILE]
        parts[RAW_FILE] = {name: raw[name] for name in average.tensors}
        parts[MODEL_FILE] = {**raw, **copies(average.tensors), **averaged_of_average}
    if averaged:
        parts[RANKS_FILE] = number_statistics(states)
    return Contents(parts, replace(state, random_states=[rank.random for rank in states]))


def gathered_states(group: ProcessGroup, own: RankState) -> list[RankState] | None:
    """Return all ranks' states on rank 0, None on others; all ranks call it with equal norms."""
    random = group.gather(own.random, dict[str, Any])
    values = list(own.statistics.values())
    # One row, since each column of `gather_rows` is a message.
    rows = [torch.cat([value.flatten() for value in values])[None]] if values else []
    rows = group.gather_rows(rows) if rows else []
    if random is None:
        return None
    states = [RankState(generators, {}) for generators in random]
    for state, row in zip(states, rows[0] if rows else (), strict=False):
        parts = row.split([value.numel() for value in values])
        for (name, value), part in zip(own.statistics.items(), parts, strict=True):
            state.statistics[name] = part.view_as(value)
    return states


class CheckpointTimer:
    """Decides when the next checkpoint is due; rank 0's counts for all ranks."""

    def __init__(self, every: str) -> None:
        self._interval = parse_interval(every)
        self.restart(step=0, epoch=0.0)

    def restart(self, *, step: int, epoch: float) -> None:
        """Count from now, when a checkpoint is written after `step` steps and `epoch` epochs."""
        self._last_time = time.monotonic()
        self._last_step, self._last_epoch = step, int(epoch)

    def is_due(self, *, step: int, epoch: float) -> bool:
        """Return whether the next checkpoint is due after `step` steps and `epoch` epochs."""
        period = self._interval.count
        if self._interval.unit == "seconds":
            return time.monotonic() - self._last_time >= period
        if self._interval.unit == "steps":
            # Checkpoints are due at multiples of the period, so a resumed run writes them at the
            # same steps.
            return step // period > self._last_step // period
        return int(epoch) // period > self._last_epoch // period
