"""Writes a run's checkpoints while training goes on, and keeps the last ones and the best."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread

from retinanet.training.checkpoint.finding import BEST, LAST, newest_first, step_of
from retinanet.training.checkpoint.reading import Checkpoint
from retinanet.training.checkpoint.state import TrainingPosition, read_state
from retinanet.training.checkpoint.writing import (
    Contents,
    checkpoint_folder,
    point_to,
    remove_old,
    remove_unfinished,
    rewrite_state,
    write_checkpoint,
)


class CheckpointKeeper:
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
