"""A run's `mlperf.log`: what happened when, in the words that MLCommons' checkers read.

Events and their order are those of MLPerf Training's logging rules, for `retinanet` under rules 5.x
and `ssd` under 2.0 to 4.1; each line is written by MLCommons' own `mllog`.
"""

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

from retinanet.errors import InputError
from retinanet.line_file import LineFile
from retinanet.mlperf.log_lines import continued, not_yet_said

HERE = Path(__file__).resolve().parents[2]


class MlperfLog:
    """Events of one run. They wait in memory until the run has a folder; ranks other than 0 have
    none, so that theirs wait for ever.
    """

    def __init__(self) -> None:
        logger = logging.Logger("mlperf.log")  # known to nobody else
        self._events: SimpleQueue[logging.LogRecord] = SimpleQueue()
        logger.addHandler(QueueHandler(self._events))
        self._mllog = MLLogger(logger, root_dir=re.escape(str(HERE)), default_stack_offset=2)
        self._file: LineFile | None = None
        self._has_stopped = False
        self._images, self._seconds = 0, 0.0

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        """Something that is so, or happens at a point in time."""
        self._mllog.event(key, value, metadata=metadata)
        self._write()

    def start(self, key: str, **metadata: Any) -> None:
        """The beginning of an interval."""
        self._mllog.start(key, metadata=metadata)
        self._write()

    def stop(self, key: str, **metadata: Any) -> None:
        """Its end."""
        self._mllog.end(key, metadata=metadata)
        self._write()

    def events(self, values: Mapping[str, Any]) -> None:
        """Several things that are so."""
        for key, value in values.items():
            self._mllog.event(key, value)
        self._write()

    def write_to(self, file: Path, *, step: int, is_evaluated: bool) -> None:
        """Write what has been said and all that will be.

        A file that is there is an earlier part of the run, which goes on after `step`: its clock
        runs on, and what comes again is taken out of it.

        Args:
            file: To append to.
            step: Optimizer steps done.
            is_evaluated: Whether the weights after them are.

        Raises:
            InputError: It cannot be written.
        """
        before = continued(file, step=step, is_evaluated=is_evaluated)
        waiting = [self._events.get().getMessage() for _ in range(self._events.qsize())]
        try:
            self._file = LineFile(file)
        except OSError as error:
            raise InputError(f"{file}: cannot be written: {error.strerror}") from error
        with suppress(OSError):
            for line in not_yet_said(waiting, before=before):
                self._file.write(line)

    def epoch_started(self, epoch: int, *, step: int) -> None:
        """The first step of an epoch, counted from 1, is next."""
        self.start(constants.EPOCH_START, epoch_num=epoch, step_num=step)

    def stepped(self, *, images: int, seconds: float) -> None:
        """An optimizer step was taken."""
        self._images += images
        self._seconds += seconds

    def epoch_stopped(self, epoch: int, *, step: int) -> None:
        """The last step of an epoch was taken."""
        if self._seconds:
            throughput = {"throughput": self._images / self._seconds}
            self.event("tracked_stats", throughput, epoch_num=epoch, step_num=step)
        self._images, self._seconds = 0, 0.0
        self.stop(constants.EPOCH_STOP, epoch_num=epoch, step_num=step)

    def evaluation_started(self, *, epoch: float, step: int) -> None:
        """The weights as they are will be evaluated."""
        self.start(constants.EVAL_START, epoch_num=whole(epoch), step_num=step)

    def evaluated(self, accuracy: float, *, epoch: float, step: int) -> None:
        """They have mAP `accuracy`."""
        place = {"epoch_num": whole(epoch), "step_num": step}
        self.event(constants.EVAL_ACCURACY, accuracy, **place)
        self.stop(constants.EVAL_STOP, **place)

    def reached_target(self) -> None:
        """The run has converged: its clock stops here, whatever is left to write and to draw."""
        self.stop(constants.RUN_STOP, status=constants.SUCCESS)
        self._has_stopped = True

    def close(self) -> None:
        """The run ends here; if it has not converged it may go on some time later."""
        if not self._has_stopped:
            self.stop(constants.RUN_STOP, status=constants.ABORTED)
        if self._file:
            self._file.close()

    def _write(self) -> None:
        """What a full disk does not take waits for the next: it must not end a training."""
        while self._file and not self._events.empty():
            with suppress(OSError):
                self._file.write(self._events.get().getMessage())


def whole(epoch: float) -> float:
    """Epochs as MLPerf counts them, such as 3, or 0.125 where a run ends within one."""
    return int(epoch) if epoch == int(epoch) else round(epoch, 3)
