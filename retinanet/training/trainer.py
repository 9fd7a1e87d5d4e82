"""A training run: load a checkpoint, train epoch by epoch, evaluate in between, finish.

`Trainer.fit` is its story, and `retinanet.training.loop` has the step. Model, data and everything
else that a run consists of are in `retinanet.training.components`. The trainer alone
moves `Progress` on; everything that it uses takes facts and returns values.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from common.cli import resuming_command
from common.console import print_rows, progress
from common.errors import (
    FINISHED,
    STOPPED_BY_SIGNAL,
    STOPPED_TOO_EARLY,
    InputError,
    NonFiniteLossError,
)
from common.walk import real_path
from launch.host_state import HostState
from launch.mpirun import launcher_command
from launch.run import stopping_notes
from retinanet.config import config_to_tree
from retinanet.evaluation.output import evaluation_name
from retinanet.mlperf.log import MlperfLog, begin_log
from retinanet.model_card import update_card
from retinanet.training.async_groups.epoch import GroupEpochs
from retinanet.training.components import RunComponents
from retinanet.training.describe import describe_run, ranks_as_json
from retinanet.training.epoch import EpochStep, SynchronousEpochs
from retinanet.training.evaluation import BackgroundEvaluation, MetricWork
from retinanet.training.nonfinite import NonFiniteReport
from retinanet.training.progress import START
from retinanet.training.recorder import NullRecorder, Recorder
from retinanet.training.resume import format_finished
from retinanet.training.schedule import Ending, patience_is_exhausted
from retinanet.training.signals import StopRequest


class Trainer:
    """Training of a run: its progress, and the loop over epochs.

    Every rank has one, and calls all of its methods at the same steps.
    """

    def __init__(
        self, run: RunComponents, *, log: MlperfLog, host_states: Mapping[str, HostState]
    ) -> None:
        """Train with the components of a run, write MLPerf's log, and record the hosts' state."""
        self.run, self.log, self.host_states = run, log, host_states
        self.config, self.folder = run.config, run.folder
        self.console, self.print = run.console, run.print
        self.progress = replace(START, images_per_epoch=run.plan.images_per_epoch)
        self.recorder: Recorder | NullRecorder = NullRecorder()

    def fit(self, stop: StopRequest) -> int:
        """Train to the last step or an earlier end; return the exit code.

        Raises:
            InputError: An image cannot be read (a checkpoint has the steps before it); or the last
                checkpoint cannot be written; or the settings do not fit the checkpoint.
            NonFiniteLossError: The run cannot continue after a step that was not finite.
        """
        self.load_checkpoint()
        if self.ending and self.is_done():
            text = format_finished(self.progress.step, self.progress.best_map, ending=self.ending)
            self.print_plainly(f"{self.folder.path}: {text}")
            return FINISHED
        begun = self.progress
        self.prepare()
        stop.hold_back()
        # From here on a signal to any rank ends with a checkpoint. The barrier is last: no rank may
        # hold back signals while another could still end at once and leave the others waiting.
        self.run.group.barrier()
        self.begin()
        # A signal that came during `begin` ends the run before its first step, on all ranks.
        stop.agree(self.run.group.all_gather(stop.received, str))
        try:
            while not stop and not self.is_done():
                # Due here after a resume too, if the run was stopped in the evaluation of these
                # weights.
                if self.evaluation_is_due():
                    self.evaluate(stop)
                for step in self.train_epoch(stop):
                    self.log_step(step)
                    if step.metric_is_ready:
                        self.finish_evaluation()
                    # Before an evaluation and at the end of the run a checkpoint is written anyway.
                    if step.checkpoint_is_due and not stop and not self.evaluation_is_due():
                        self.save()
                    if stop or self.ending:
                        break
        # Such as an unreadable image: the steps before the error are saved.
        except InputError as error:
            if self.progress.step == 0:
                raise
            self.save_and_wait()
            raise InputError(f"{error}; then continue with: {self.resuming_command}") from error
        self.save_and_wait()
        self.recorder.wait_for_files()
        if stop:
            gain = "" if self.progress != begun else ", but no step was made since the start"
            text = f"{stop.name}: checkpoint written{gain}; continue with: {self.resuming_command}"
            self.print_plainly(text)
            return STOPPED_TOO_EARLY if gain else STOPPED_BY_SIGNAL
        self.finish()
        return FINISHED

    def load_checkpoint(self) -> None:
        """Restore weights, optimizer and position, if rank 0 has a checkpoint that fits."""
        position = self.run.load_checkpoint()
        if position is None:
            return
        # With more ranks the remaining images of the epoch may not fill a step: the plan then
        # moves on to the next epoch, and the progress must follow.
        epoch, images = self.run.plan.position(position.step)
        self.progress = replace(position, epoch=epoch, images=images)

    def prepare(self) -> None:
        """Make the run ready for the first step."""
        self.run.prepare()
        # Together, or in groups that do not wait for each other.
        is_together = self.config.distributed.groups == 1
        self.epochs = SynchronousEpochs(self.run) if is_together else GroupEpochs(self.run)
        self.run.restore_rank_states()

    def begin(self) -> None:
        """Create the run's folder and logs on rank 0, and print the settings of the run."""
        run = self.run
        if run.group.is_first:
            config = config_to_tree(self.config)
            resume = run.checkpoint is not None
            self.folder.begin(
                config,
                ranks=ranks_as_json(run),
                rare_classes=run.rare_classes,
                host_states=self.host_states,
                start=run.start,
                resume=resume,
            )
        steps = range(self.progress.step + 1, run.plan.total_steps + 1)
        notes = (
            *run.group.notes,
            *stopping_notes(run.place.ranks, os.environ),
            *self.folder.notes,
            *run.profiler.notes(steps),
            *run.notes,
        )
        # Waits for all: no rank takes a step before rank 0 has the folder ready.
        notes_of_ranks = run.group.all_gather(notes, tuple[str, ...])
        if not run.group.is_first:
            return
        begin_log(
            self.log,
            model=run.model,
            optimizer=run.optimizer,
            name=self.config.training.optimizer,
            training_images=len(run.data.train),
            validation_images=len(run.data.validation),
        )
        is_evaluated = self.progress.map_here is not None
        self.log.write_to(
            self.folder.mlperf_log, step=self.progress.step, is_evaluated=is_evaluated
        )
        self.recorder = Recorder(
            self.folder,
            console=self.console,
            first_step=self.progress.step,
            target_map=self.config.training.target_map,
        )
        rows = describe_run(run, step=self.progress.step, ways=self.epochs.rows)
        print_rows(self.console, rows)
        for note in dict.fromkeys(note for rank_notes in notes_of_ranks for note in rank_notes):
            self.print(f"note: {note}")

    def train_epoch(self, stop: StopRequest) -> Iterator[EpochStep]:
        """Train to the epoch's or the run's end, and yield every step to be logged.

        Yields nothing once the run is finished or a signal came.
        """
        if stop or self.ending:
            return
        step, plan = self.progress.step, self.run.plan
        epoch, images = plan.position(step)
        if images == 0:
            self.log.epoch_started(epoch + 1, step=step)
        title = f"epoch {epoch + 1}/{self.config.training.epochs}, steps"
        last, total = plan.end_of_epoch(step), plan.total_steps
        with progress(self.console, title, total=total, start=step) as self.show_progress:
            yield from self.epochs.train_epoch(step, last=last, stop=stop)

    def log_step(self, step: EpochStep) -> None:
        """Advance the state, and write a step to console, metrics and MLPerf's log.

        Raise the step's problem, if it has one, or NonFiniteLossError.
        """
        if step.nonfinite is not None:
            self.report_nonfinite(step.nonfinite)
        result, before, plan = step.result, self.progress.step, self.run.plan
        if step.step is not None and step.step > before:
            self.progress = self.progress.after(step.step, plan.position(step.step))
        if result is not None:
            for note in result.notes:
                self.print(note)
            self.log.stepped(images=result.images, seconds=result.run_seconds)
            epoch = plan.epochs_done(result.step)
            self.show_progress(step.done, self.recorder.step(result, epoch=epoch))
        if self.progress.step > before and plan.ends_epoch(self.progress.step):
            epochs_before, _ = plan.position(self.progress.step - 1)
            self.log.epoch_stopped(epochs_before + 1, step=self.progress.step)
        self.log_bad_images(step.bad_images, instead="another image is used instead")
        if isinstance(step.problem, NonFiniteLossError):
            self.save_and_wait()
            raise NonFiniteLossError(
                f"{step.problem}; the current weights are in a checkpoint; continue with: "
                f"{self.resuming_command}"
            )
        if step.problem is not None:
            raise step.problem

    def report_nonfinite(self, report: NonFiniteReport) -> None:
        """Log a skipped step, or end the run after writing the state before it to the disk."""
        if report.advice is None:
            self.print(f"{report.line}; the step was skipped, training continues")
            self.recorder.record("nonfinite", report.content)
            self.progress = replace(self.progress, skipped_steps=self.run.guard.skipped)
            return
        contents, step = self.run.gathered(self.progress), self.progress.step
        try:
            folder = self.run.checkpointer.save_nonfinite(
                contents, step=step, report=report.content
            )
            details = f"details in {folder}"
        except InputError as error:
            details = str(error)
        # The launcher ends all ranks as soon as one ends: wait until rank 0 has written the files.
        self.run.group.barrier()
        raise NonFiniteLossError(f"{report.line}; {report.advice}; {details}")

    def log_bad_images(self, problems: tuple[str, ...], *, instead: str) -> None:
        """Write images that could not be read."""
        for problem in problems:
            self.console.print(f"{problem}; {instead}", soft_wrap=True)
            content = {"step": self.progress.step, "problem": problem}
            self.recorder.record("bad_image", content)

    def log_bad_validation_images(self, problems: tuple[str, ...]) -> None:
        """Write validation images that could not be read, each once; InputError if too many."""
        new = tuple(self.run.loading.bad_images.note(problems))
        self.log_bad_images(new, instead="it is evaluated as an image without detections")

    def evaluate(self, stop: StopRequest) -> None:
        """Evaluate the current weights, unless `stop` is set before detection has finished.

        Their checkpoint is written before, and the metric is added to it later. Until then no other
        checkpoint is written: a resumed run starts from this one, and no evaluation is lost.
        """
        self.finish_evaluation()
        # The earlier metric may have ended the run, which has then returned to the weights of that
        # step: they are evaluated.
        if not self.evaluation_is_due():
            return
        run = self.run
        run.agree_on_weights()
        # An evaluation may take as long as an epoch, so the steps before it are saved.
        self.save()
        self.log.evaluation_started(epoch=self.epochs_done, step=self.progress.step)
        start = time.perf_counter()
        detections = run.detect(stop, note_bad_images=self.log_bad_validation_images)
        if detections is None:
            return
        work = MetricWork(
            run.data.validation.annotations,
            detections,
            real_path(self.folder.evaluations),
            evaluation_name(self.progress.step),
        )
        evaluation = BackgroundEvaluation(
            self.progress,
            epochs=self.epochs_done,
            detection_seconds=time.perf_counter() - start,
            work=work if run.group.is_first else None,
        )
        # Not after the last step, when there is nothing to overlap with. And not if these weights
        # are not on the disk: if they reach the target, they are the result of the run.
        overlaps = self.config.evaluation.overlap and self.progress.step < run.plan.total_steps
        if overlaps and run.checkpointer.is_there(self.progress.step):
            evaluation.start(spare_cpus=run.place.pinned.spare_cpus, training_cpus=run.share.cpus)
            run.evaluation = evaluation
        else:
            self.apply_evaluation(evaluation)

    def finish_evaluation(self) -> None:
        """Wait for the metric that is being computed in the background, and apply it."""
        evaluation, self.run.evaluation = self.run.evaluation, None
        if evaluation is not None:
            self.apply_evaluation(evaluation)

    def apply_evaluation(self, evaluation: BackgroundEvaluation) -> None:
        """Write an evaluation's mAP into state, checkpoint and logs.

        If it ends the run some steps later, by the target or by patience, the run returns to the
        evaluated weights: without overlap there would have been no later ones.
        """
        run, result = self.run, evaluation.wait()
        # Only rank 0 has the metric, but all ranks must take the same decisions.
        current_map = run.group.from_first(lambda: result.evaluation.map if result else 0.0, float)
        evaluated = evaluation.progress.evaluated(current_map)
        step, epochs = evaluated.step, evaluation.epochs
        steps_since = self.progress.step - step
        self.progress = replace(
            self.progress,
            best_map=evaluated.best_map,
            evaluations_since_best=evaluated.evaluations_since_best,
        )
        is_reached = self.reaches_target(current_map)
        ends_here = is_reached or self.patience_is_exhausted()
        self.log.evaluated(current_map, epoch=epochs, step=step)
        if is_reached:
            self.log.reached_target()
        if steps_since == 0 or ends_here:
            self.progress = evaluated
        # The checkpoint comes before anything that might fail, such as drawing pictures.
        if steps_since == 0 and not run.checkpointer.is_there(step):
            # A failed write is retried once.
            self.save()
        if run.checkpointer.is_there(step):
            run.checkpointer.add_evaluation(evaluated)
        if ends_here and steps_since:
            reason = "the target was reached" if is_reached else "training.patience ended"
            self.console.print(
                f"note: {reason} after step {step}; the {steps_since} steps since then are "
                "discarded"
            )
        if result is None:
            return
        warning = update_card(
            run,
            result.evaluation,
            step=step,
            epochs=epochs,
            shared_images=run.shared_images,
        )
        if warning is not None:
            self.print_plainly(warning)
        write_files = partial(evaluation.wait_for_files, result) if evaluation.is_started else None
        self.recorder.evaluation(result, step=step, epoch=epochs, write_files=write_files)
        count = self.config.evaluation.pictures
        self.recorder.pictures(result, run.data.validation, step=step, count=count)

    def evaluation_is_due(self) -> bool:
        """Return whether the current weights should be evaluated before training continues."""
        step, running = self.progress.step, self.run.evaluation
        is_running = running is not None and running.progress.step == step
        is_known = self.progress.map_here is not None
        return not is_known and not is_running and self.run.plan.evaluation_is_due(step)

    @property
    def ending(self) -> Ending | None:
        """Why no further step is to be taken; None: the run goes on."""
        map_here = self.progress.map_here
        if map_here is not None and self.reaches_target(map_here):
            return "target"
        if self.progress.step >= self.run.plan.total_steps:
            return "length"
        return "patience" if self.patience_is_exhausted() else None

    def is_done(self) -> bool:
        """Return whether the run is finished, and its weights are evaluated."""
        return self.ending is not None and not self.evaluation_is_due()

    def patience_is_exhausted(self) -> bool:
        """Return whether `training.patience` evaluations have passed without a better mAP."""
        return patience_is_exhausted(self.config.training, self.progress.evaluations_since_best)

    def reaches_target(self, value: float) -> bool:
        """Return whether an mAP is at least `training.target_map`."""
        target = self.config.training.target_map
        return target is not None and value >= target

    def save(self) -> None:
        """Begin to write a checkpoint, unless this step's is there; a failure is a warning."""
        self.finish_evaluation()
        contents = partial(self.run.gathered, self.progress)
        self.run.checkpointer.save(contents, step=self.progress.step, epoch=self.epochs_done)

    def save_and_wait(self) -> None:
        """Write a checkpoint, and wait until it is on the disk; InputError if it cannot be."""
        self.save()
        if not self.run.checkpointer.is_there(self.progress.step):
            raise InputError(
                f"{self.folder.checkpoints}: the checkpoint after step {self.progress.step} could "
                f"not be written: {self.run.checkpointer.problem}; free disk space, then continue "
                f"with: {self.resuming_command}"
            )

    def finish(self) -> None:
        """Print how the run ended and where its files are."""
        validation = self.run.data.validation
        self.recorder.closing(
            ending=self.ending,
            patience=self.config.training.patience,
            step=self.progress.step,
            best_map=self.progress.best_map,
            bad_images=len(self.run.loading.bad_images.seen),
            example=validation.image_folder / validation.annotations.file_names[0],
        )

    @property
    def epochs_done(self) -> float:
        """Completed epochs, with the fraction of the current one."""
        return self.run.plan.epochs_done(self.progress.step)

    @property
    def resuming_command(self) -> str:
        """The command that continues this run."""
        return resuming_command(launcher_command(self.run.place.ranks, os.environ))

    def print_plainly(self, text: str) -> None:
        """Print a line that scripts may read, without colours, on rank 0."""
        if self.run.group.is_first:
            print(text, flush=True)
