"""TensorBoard's event files, which a full disk interrupts and does not end."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard.writer import SummaryWriter

SECONDS_BETWEEN_TRIES = 60.0
WRITERS_THREAD = "_AsyncWriterThread"
"""tensorboard's class of the thread that writes; what it raises comes back at the next call."""


class TensorBoardLog:
    """Numbers and pictures by step. What cannot be written is left out: `metrics.jsonl` has it."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        """Write event files into a folder; what others there have from `purge_step` on is void."""
        self._folder = folder
        self._purge_step: int | None = purge_step
        self._writer: SummaryWriter | None = None
        self._next_try = 0.0
        self._previous_hook = threading.excepthook
        threading.excepthook = self._hide_disk_errors

    def scalars(self, values: Mapping[str, float], *, step: int) -> None:
        """Numbers by name.

        Raises:
            OSError: They could not be written.
        """
        self._write(lambda to: [to.add_scalar(name, one, step) for name, one in values.items()])

    def image(self, name: str, pixels: NDArray[np.uint8], *, step: int) -> None:
        """A picture [H, W, 3].

        Raises:
            OSError: It could not be written.
        """
        self._write(lambda to: to.add_image(name, pixels, step, dataformats="HWC"))

    def close(self) -> None:
        """Write what is buffered."""
        writer, self._writer = self._writer, None
        with suppress(OSError):
            if writer is not None:
                writer.close()
        threading.excepthook = self._previous_hook

    def _write(self, action: Callable[[SummaryWriter], object]) -> None:
        if self._writer is None:
            if time.monotonic() < self._next_try:
                return
            self._next_try = time.monotonic() + SECONDS_BETWEEN_TRIES
            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
            self._purge_step = None
        try:
            action(self._writer)
        except OSError:
            self._writer = None  # its thread has ended: the next one writes another file
            raise

    def _hide_disk_errors(self, arguments: threading.ExceptHookArgs) -> None:
        is_writer = type(arguments.thread).__name__ == WRITERS_THREAD
        if not (is_writer and isinstance(arguments.exc_value, OSError)):
            self._previous_hook(arguments)
