"""A split's metric, and the files of its evaluation, in a process beside the training.

Neither needs torch, nor more than one core: while they are made the ranks can take further steps.
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from data.annotations import Annotations
from data.worker_signals import obey_parent, signals_blocked
from retinanet.errors import InputError
from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.files import write_evaluation
from retinanet.evaluation.metric import Evaluation, coco_metric
from retinanet.evaluation.result import SplitResult
from retinanet.metric_library import MetricLibrary

NICE = 10
"""Where there is no core to spare, training goes first."""
WRITTEN = "written"


class EvaluationBeside:
    """One evaluation's metric and files, under way."""

    def __init__(
        self,
        annotations: Annotations,
        detections: SplitDetections,
        *,
        library: MetricLibrary,
        folder: Path,
        name: str,
        cpus: Sequence[int],
        are_spare: bool,
    ) -> None:
        """Start the process.

        Args:
            annotations: The split's.
            detections: Of all its images.
            library: See `coco_metric`.
            folder: Where boxes, classes and chart go.
            name: Their files' name.
            cpus: Where it runs.
            are_spare: Whether training leaves them free; else it steps back for training.
        """
        work = Work(annotations, detections, library, folder.resolve(), name)
        self._work = work
        context = multiprocessing.get_context("spawn")  # a fork would hold all memory of training
        self._told, end = context.Pipe(duplex=False)
        self._process = context.Process(
            target=evaluate_beside,
            args=(work, end),
            kwargs={"cpus": cpus, "nice": 0 if are_spare else NICE, "parent": os.getpid()},
            daemon=True,
        )
        with signals_blocked():
            self._process.start()
        end.close()  # the process has the only one left: when it dies, reading ends

    def is_ready(self) -> bool:
        """Whether the metric is known, or the process has died."""
        return self._told.poll()

    def result(self, *, detecting: float) -> SplitResult:
        """The metric, waiting for it; where the process has died it is computed here.

        Args:
            detecting: Seconds that it took to detect.
        """
        told = self._next_told()
        evaluation, seconds = told if told else self._work.scored()
        return SplitResult(evaluation, self._work.detections, seconds=detecting + seconds)

    def require_files(self, result: SplitResult) -> None:
        """Wait for the files; where the process has died they are written here.

        Raises:
            InputError: One of them could not be written.
        """
        told = self._next_told()
        self._process.join()
        if told is None:
            write_evaluation(result, self._work.folder, name=self._work.name)
        elif told != WRITTEN:
            raise InputError(told)

    def _next_told(self) -> Any:
        try:
            return self._told.recv()
        except (EOFError, OSError):
            return None


@dataclass(frozen=True, eq=False)
class Work:
    """What the process gets."""

    annotations: Annotations
    detections: SplitDetections
    library: MetricLibrary
    folder: Path
    name: str

    def scored(self) -> tuple[Evaluation, float]:
        """The metric, and the seconds that it took."""
        start = time.perf_counter()
        evaluation = coco_metric(self.annotations, self.detections, library=self.library)
        return evaluation, time.perf_counter() - start


def evaluate_beside(
    work: Work, end: Connection, *, cpus: Sequence[int], nice: int, parent: int
) -> None:
    """What the process does: tell metric and seconds, then `WRITTEN`, or why files are missing."""
    obey_parent(0, parent=parent)
    os.nice(nice)
    with suppress(OSError):  # a container may not permit it
        os.sched_setaffinity(0, cpus)
    evaluation, seconds = work.scored()
    end.send((evaluation, seconds))
    told = WRITTEN
    try:
        result = SplitResult(evaluation, work.detections, seconds=seconds)
        write_evaluation(result, work.folder, name=work.name)
    except InputError as error:
        told = str(error)
    end.send(told)
