"""The metric of an evaluation, after detection on all ranks: rank 0 computes it and writes files.

Metric and files need neither torch nor more than one core, so a separate process can compute them
while the ranks take further steps (`evaluation.overlap`).
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.processes import exit_with_parent, signals_blocked
from data.annotations import Annotations
from retinanet.evaluation.matching import SplitDetections
from retinanet.evaluation.metric import Evaluation, coco_metric
from retinanet.evaluation.output import SplitResult, write_evaluation
from retinanet.training.progress import Progress

NICE = 10  # The process's niceness where there is no core to spare: training goes first
WRITTEN = "written"


@dataclass(frozen=True, eq=False)
class MetricWork:
    """The input of the process that computes the metric."""

    annotations: Annotations  # The split's
    detections: SplitDetections
    folder: Path  # Folder of boxes, classes and chart
    name: str  # Their files' name

    def metric(self) -> tuple[Evaluation, float]:
        """Return the metric, and the seconds that it took."""
        start = time.perf_counter()
        evaluation = coco_metric(self.annotations, self.detections)
        return evaluation, time.perf_counter() - start


class BackgroundEvaluation:
    """An evaluation with detections, whose metric is still to be computed.

    `start` computes it in a separate process; without `start`, or if the process has died, `wait`
    computes it. Only rank 0 has work; on the other ranks there is nothing to wait for.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        epochs: float,
        detection_seconds: float,
        work: MetricWork | None,
    ) -> None:
        """Describe the evaluation of the weights of `progress`, after `epochs` epochs.

        `work` is what the metric is computed from, None on ranks other than 0.
        """
        self.progress = progress
        self.epochs = epochs
        self._detection_seconds = detection_seconds
        self._work = work
        self._process: BaseProcess | None = None
        self._answers: Connection | None = None

    def start(self, *, spare_cpus: Sequence[int], training_cpus: Sequence[int]) -> None:
        """Start the process on rank 0: on spare CPUs, else with low priority on the training's."""
        if self._work is None:
            return
        # Not a fork: it would keep all memory of the training process.
        context = multiprocessing.get_context("spawn")
        self._answers, end = context.Pipe(duplex=False)
        # On spare CPUs the process takes no core from training, so its priority is not lowered.
        cpus, nice = (spare_cpus, 0) if spare_cpus else (training_cpus, NICE)
        self._process = context.Process(
            target=compute_metric,
            args=(self._work, end),
            kwargs={"cpus": cpus, "nice": nice, "parent": os.getpid()},
            daemon=True,
        )
        # A signal before the new process can handle signals would end it. `exit_with_parent`
        # requires that signals are blocked from the start.
        with signals_blocked():
            self._process.start()
        # Only the process keeps this end of the pipe. When the process dies, `recv` therefore
        # raises EOFError instead of waiting.
        end.close()

    @property
    def is_started(self) -> bool:
        """Whether a separate process computes the metric."""
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        """Whether the process has computed the metric, or has died; False on other ranks."""
        return self._answers is not None and self._answers.poll()

    def wait(self) -> SplitResult | None:
        """Return the metric, and wait for it if need be; None on ranks other than 0."""
        if self._work is None:
            return None
        # A process that has died leaves no answer, and its work is repeated here.
        evaluation, seconds = self._next_answer() or self._work.metric()
        return SplitResult(
            evaluation, self._work.detections, seconds=self._detection_seconds + seconds
        )

    def wait_for_files(self, result: SplitResult) -> None:
        """Wait for the files; if no process has written them, write them here.

        Raises:
            InputError: One of them could not be written.
        """
        assert self._work is not None
        answer = self._next_answer()
        if self._process is not None:
            self._process.join()
        if answer is None:
            write_evaluation(result, self._work.folder, name=self._work.name)
        elif answer != WRITTEN:
            raise InputError(answer)

    def _next_answer(self) -> Any:
        """Return the process's next response; None if it has ended, or there is no process."""
        if self._answers is None:
            return None
        with suppress(EOFError, OSError):
            return self._answers.recv()
        return None


def compute_metric(
    work: MetricWork, end: Connection, *, cpus: Sequence[int], nice: int, parent: int
) -> None:
    """Send metric and seconds, then `WRITTEN` or why files are missing; runs in the process."""
    exit_with_parent(0, parent=parent)
    os.nice(nice)
    # A container may not permit a choice of CPUs, which is not essential here.
    with suppress(OSError):
        os.sched_setaffinity(0, cpus)
    evaluation, seconds = work.metric()
    # The metric is sent first: training needs only its value, and the files take several times as
    # long (docs/experiments.md).
    end.send((evaluation, seconds))
    answer = WRITTEN
    try:
        result = SplitResult(evaluation, work.detections, seconds=seconds)
        write_evaluation(result, work.folder, name=work.name)
    except InputError as error:
        answer = str(error)
    end.send(answer)
