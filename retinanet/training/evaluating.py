"""A run's evaluations: between two epochs, or with the metric beside the next epoch's steps.

All ranks call all of it, at the same steps. The checkpoint of the weights that are evaluated is
written before, and gets the metric when it is known. Until then no other is written: a run that is
resumed begins at that checkpoint again, so that no evaluation is lost.
"""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from retinanet.evaluation.beside import EvaluationBeside
from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.metric import coco_metric
from retinanet.evaluation.result import SplitResult
from retinanet.evaluation.split import detect_split
from retinanet.training.agreement import agree_on_weights, average_norms
from retinanet.training.card import leave_card
from retinanet.training.checkpoint import TrainingPosition
from retinanet.training.run_checkpoints import begin_checkpoint, note_evaluation, position_of
from retinanet.training.run_record import evaluation_name
from retinanet.training.signals import StopRequest

if TYPE_CHECKING:
    from retinanet.training.run import Run


@dataclass(frozen=True, kw_only=True)
class Pending:
    """An evaluation whose metric is still to come."""

    position: TrainingPosition
    """Where the weights are that it is of."""
    epochs: float
    """The same, with the share of the running one."""
    detecting: float
    """Seconds."""
    beside: EvaluationBeside | None = None
    """Rank 0's process; None on the others, and where training waits for the metric."""

    @property
    def is_ready(self) -> bool:
        """Whether rank 0 has been told the metric; False on the others."""
        return self.beside is not None and self.beside.is_ready()


def evaluate(run: "Run", stop: StopRequest) -> None:
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
    pending = Pending(
        position=position_of(run),
        epochs=run.epochs_done,
        detecting=time.perf_counter() - start,
    )
    if overlaps(run):
        beside = start_beside(run, detections) if run.group.is_first else None
        run.pending = replace(pending, beside=beside)
        return
    learn(run, pending, scored(run, detections, detecting=pending.detecting))


def overlaps(run: "Run") -> bool:
    """Whether the metric of the weights as they are is computed beside the next steps.

    Not after the last, and not where they are not on the disk: once the target turns out to be
    reached, they are what the run has come to.
    """
    wanted = run.config.evaluation.overlap and run.step < run.plan.total_steps
    return wanted and run.saving.is_there(run.step)


def start_beside(run: "Run", detections: SplitDetections) -> EvaluationBeside:
    """The process that computes the metric and writes the evaluation's files."""
    pinned = run.place.pinned
    return EvaluationBeside(
        run.data.validation.annotations,
        detections,
        library=run.config.evaluation.metric,
        folder=run.folder.evaluations,
        name=evaluation_name(run.step),
        cpus=pinned.spare_cpus or pinned.share.cpus,
        are_spare=bool(pinned.spare_cpus),
    )


def scored(run: "Run", detections: SplitDetections, *, detecting: float) -> SplitResult | None:
    """The metric, computed on rank 0 while the others wait; None there."""
    if not run.group.is_first:
        return None
    start = time.perf_counter()
    library = run.config.evaluation.metric
    evaluation = coco_metric(run.data.validation.annotations, detections, library=library)
    return SplitResult(evaluation, detections, detecting + time.perf_counter() - start)


def settle(run: "Run") -> None:
    """Wait for the metric that is being computed beside the training, if there is one."""
    pending, run.pending = run.pending, None
    if pending is not None:
        beside = pending.beside
        result = beside.result(detecting=pending.detecting) if beside else None
        learn(run, pending, result)


def learn(run: "Run", pending: Pending, result: SplitResult | None) -> None:
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
