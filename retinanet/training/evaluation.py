"""A run's evaluations: between two epochs, or with the metric beside the next epoch's steps.

All ranks call all of it, at the same steps. The checkpoint of the weights that are evaluated is
written before, and gets the metric when it is known. Until then no other is written: a run that is
resumed begins at that checkpoint again, so that no evaluation is lost.

TODO-DOC A split's metric, and the files of its evaluation, in a process beside the training.

Neither needs torch, nor more than one core: while they are made the ranks can take further steps.
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import InputError
from common.processes import obey_parent, signals_blocked
from data.annotations import Annotations
from retinanet.config_types import MetricLibrary
from retinanet.evaluation.detect import detect_split
from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.metric import Evaluation, coco_metric
from retinanet.evaluation.output import SplitResult, evaluation_name, write_evaluation
from retinanet.model_card import leave_card
from retinanet.training.checkpoint_state import TrainingPosition
from retinanet.training.distributed import agree_on_weights, average_norms
from retinanet.training.run_checkpoints import begin_checkpoint, note_evaluation, position_of
from retinanet.training.signals import StopRequest

if TYPE_CHECKING:
    from retinanet.training.trainer import Trainer


class BackgroundEvaluation:
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


@dataclass(frozen=True, kw_only=True)
class PendingEvaluation:
    """An evaluation whose metric is still to come."""

    position: TrainingPosition
    """Where the weights are that it is of."""
    epochs: float
    """The same, with the share of the running one."""
    detecting: float
    """Seconds."""
    beside: BackgroundEvaluation | None = None
    """Rank 0's process; None on the others, and where training waits for the metric."""

    @property
    def is_ready(self) -> bool:
        """Whether rank 0 has been told the metric; False on the others."""
        return self.beside is not None and self.beside.is_ready()


def evaluate(run: "Trainer", stop: StopRequest) -> None:
    """Evaluate the weights as they are, unless `stop` comes true before all is detected."""
    settle(run)
    if run.target_is_reached():
        return
    if not agree_on_weights(run.group, run.model):
        run.console.print("note: weights differed between ranks; all go on with rank 0's")
    average_norms(run.group, run.model)
    begin_checkpoint(run)  # an evaluation may take as long as an epoch
    run.log.evaluation_started(epoch=run.epochs_done, step=run.step)
    start = time.perf_counter()
    detections = detect_split(
        run.model,
        run.loading.validation,
        classes=run.data.classes,
        forward=run.prepared.forward,
        console=run.console,
        group=run.group,
        stop=stop,
        main_cpus=run.place.pinned.share.main_cpus,
        note_bad_images=partial(
            run.note_bad_images, instead="it is evaluated as an image without detections"
        ),
    )
    if detections is None:
        return
    pending = PendingEvaluation(
        position=position_of(run),
        epochs=run.epochs_done,
        detecting=time.perf_counter() - start,
    )
    if overlaps(run):
        beside = start_beside(run, detections) if run.group.is_first else None
        run.pending = replace(pending, beside=beside)
        return
    learn(run, pending, scored(run, detections, detecting=pending.detecting))


def overlaps(run: "Trainer") -> bool:
    """Whether the metric of the weights as they are is computed beside the next steps.

    Not after the last, and not where they are not on the disk: once the target turns out to be
    reached, they are what the run has come to.
    """
    wanted = run.config.evaluation.overlap and run.step < run.plan.total_steps
    return wanted and run.saving.is_there(run.step)


def start_beside(run: "Trainer", detections: SplitDetections) -> BackgroundEvaluation:
    """The process that computes the metric and writes the evaluation's files."""
    pinned = run.place.pinned
    return BackgroundEvaluation(
        run.data.validation.annotations,
        detections,
        library=run.config.evaluation.metric,
        folder=run.folder.evaluations,
        name=evaluation_name(run.step),
        cpus=pinned.spare_cpus or pinned.share.cpus,
        are_spare=bool(pinned.spare_cpus),
    )


def scored(run: "Trainer", detections: SplitDetections, *, detecting: float) -> SplitResult | None:
    """The metric, computed on rank 0 while the others wait; None there."""
    if not run.group.is_first:
        return None
    start = time.perf_counter()
    library = run.config.evaluation.metric
    evaluation = coco_metric(run.data.validation.annotations, detections, library=library)
    return SplitResult(evaluation, detections, detecting + time.perf_counter() - start)


def settle(run: "Trainer") -> None:
    """Wait for the metric that is being computed beside the training, if there is one."""
    pending, run.pending = run.pending, None
    if pending is not None:
        beside = pending.beside
        result = beside.result(detecting=pending.detecting) if beside else None
        learn(run, pending, result)


def learn(run: "Trainer", pending: PendingEvaluation, result: SplitResult | None) -> None:
    """Take in what an evaluation has come to.

    Where it reached the target some steps ago the run goes back to the weights that reached it.

    Args:
        run: The run.
        pending: What is evaluated.
        result: Rank 0's.
    """
    found = run.group.from_first(lambda: result.evaluation.map if result else 0.0)
    best = found if run.best_map is None else max(found, run.best_map)
    position = replace(pending.position, map_here=found, best_map=best)
    since = run.step - position.step
    run.best_map = best
    is_reached = run.reaches_target(found)
    run.log.evaluated(found, epoch=pending.epochs, step=position.step)
    if is_reached:
        run.log.reached_target()
    if since == 0 or is_reached:
        run.step, run.map_here = position.step, found
    # Before anything that might fail, such as drawing.
    note_evaluation(run, position, is_current=since == 0)
    if is_reached and since:
        run.console.print(
            f"note: the target was reached after step {position.step}; the {since} steps since "
            "then are given up"
        )
    if result is not None:
        leave_card(run, result.evaluation, position=position, epochs=pending.epochs)
        run.record.evaluation(
            result, step=position.step, epoch=pending.epochs, beside=pending.beside
        )
        run.record.pictures(
            result,
            run.data.validation,
            step=position.step,
            count=run.config.evaluation.pictures,
        )


NICE = 10
"""Where there is no core to spare, training goes first."""
WRITTEN = "written"


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
