"""A training run: load a checkpoint, train epoch by epoch, evaluate in between, finish.

`Trainer.fit` is its story, and `retinanet.training.loop` has the step. The trainer alone writes
`TrainState`; everything else that it uses takes facts and returns values.
"""

import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial

from rich.console import Console

from common.cli import resuming_command
from common.console import progress
from common.errors import FINISHED, STOPPED_BY_SIGNAL, InputError, NonFiniteLossError
from launch.mpirun import launcher_command
from launch.pinning import RankContext
from launch.process_group import ProcessGroup
from launch.run import stopping_notes
from launch.topology import HostState
from retinanet.config import Config, config_to_tree
from retinanet.engine.engines import prepare_training
from retinanet.evaluation.detect import detect_split
from retinanet.evaluation.output import evaluation_name
from retinanet.mlperf.log import MlperfLog, begin_log
from retinanet.mlperf.submission import submit
from retinanet.model_card import update_card
from retinanet.training.build import (
    build_model,
    build_optimizer,
    notes_on_backbone,
    starting_weights,
)
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.checkpointer import Checkpointer
from retinanet.training.data import Loading, open_run_data
from retinanet.training.detector_weights import start_from_detector
from retinanet.training.distributed import (
    agree_on_weights,
    average_norms,
    make_exchange,
    settle_batches,
    share_weights,
)
from retinanet.training.ema import WeightAverage
from retinanet.training.epoch import EpochStep
from retinanet.training.evaluation import BackgroundEvaluation, MetricWork
from retinanet.training.loop import StepProfiler
from retinanet.training.nonfinite import NonFiniteGuard, NonFiniteReport
from retinanet.training.parallel import averaging_ranks, make_strategy
from retinanet.training.recorder import NullRecorder, Recorder
from retinanet.training.resume import (
    describe_setup,
    differences,
    format_finished,
    recorded_split,
    require_same_data,
)
from retinanet.training.run_folder import (
    RunFacts,
    RunFolder,
    describe_run,
    print_rows,
    ranks_as_json,
)
from retinanet.training.schedule import Ending, Position, StepPlan, TrainState
from retinanet.training.signals import StopRequest
from retinanet.training.train_state import (
    ModelDescription,
    State,
    TrainingPosition,
    load_rank_state_dict,
    seed_everything,
    trained_norms,
)


class Trainer:
    """Training of a run: model, optimizer, state, and the loop over epochs.

    Every rank has one, and calls all of its methods at the same steps.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        *,
        engine: str,
        group: ProcessGroup,
        place: RankContext,
        console: Console,
        log: MlperfLog,
        profiler: StepProfiler,
        host_states: Mapping[str, HostState],
    ) -> None:
        """Open data and build the model; rank 0 resumes from `checkpoint`, the others have none.

        Raises:
            InputError: The data or the weights to start from do not fit, or cannot be read.
        """
        self.config, self.folder, self.checkpoint, self.engine = config, folder, checkpoint, engine
        self.place, self.console, self.log, self.profiler = place, console, log, profiler
        self.print = partial(console.print, soft_wrap=True, markup=False)
        """Prints a line above the progress bar; on ranks other than 0 the console is quiet."""
        self.host_states = host_states
        self.share = place.pinned.share
        """This rank's cores."""
        self.group = group
        """The ranks of the job that have not ended."""
        self.state = TrainState()
        seed_everything(config.run.seed)
        self.data = open_run_data(config, scenes_folder=folder.scenes, console=console, group=group)
        classes, groups = self.data.classes, config.distributed.groups
        # Only rank 0 reads files of weights. `share_weights` sends them to the other ranks later.
        is_reading = group.is_first and not checkpoint
        weights = starting_weights(config.model) if is_reading else None
        self.notes = notes_on_backbone(config.model.pretrained_backbone, weights)
        """Printed before the first step."""
        self.model = build_model(config.model, num_classes=classes.num_classes, weights=weights)
        # The tensors would keep their file mapped for the whole run.
        del weights
        detector = config.model.weights if is_reading else None
        self.start = start_from_detector(self.model, detector, names=classes.names)
        """What a new run took from `model.weights`; None for others, and on ranks other than 0."""
        self.notes += self.start.notes() if self.start else []
        self.optimizer = build_optimizer(config.training, self.model, engine=engine, groups=groups)
        decay = config.training.ema
        self.average = None if decay is None else WeightAverage(self.model, decay=decay)
        self.description = ModelDescription(
            num_classes=classes.num_classes,
            norm=config.model.norm,
            trainable_layers=config.model.trainable_layers,
            image_size=config.data.image_size,
            resize=config.data.resize,
            precision=config.engine.precision,
            classes=classes.to_json(),
        )
        self.open_components()

    def open_components(self) -> None:
        """Create plan, loaders, checkpointer and guard for the ranks that average with this one."""
        config, group, training = self.config, self.group, self.config.training
        self.averaging = averaging_ranks(config, group, self.place)
        """The ranks that average their gradients with this one."""
        self.plan = StepPlan(
            images_per_epoch=len(self.data.train),
            images_per_batch=training.batch_size * self.averaging.size,
            gradient_accumulation=training.gradient_accumulation,
            epochs=training.epochs,
            max_steps=training.max_steps,
            evaluate_every=config.evaluation.every,
        )
        self.loading = Loading(
            self.data,
            config,
            cores=self.share.loader_cpus,
            rank=self.averaging.rank,
            ranks=self.averaging.size,
            evaluation_rank=group.rank,
            evaluation_ranks=group.size,
        )
        self.guard = NonFiniteGuard(
            training.on_nonfinite,
            limit=training.nonfinite_limit,
            annotations=self.data.train.annotations,
        )
        self.checkpointer = Checkpointer(
            self.folder.checkpoints,
            every=config.checkpoint.every,
            keep=config.checkpoint.keep,
            group=group,
            warn=self.print,
        )
        self.recorder: Recorder | NullRecorder = NullRecorder()
        self.evaluation: BackgroundEvaluation | None = None
        """The evaluation whose metric is being computed while training continues."""

    def fit(self, stop: StopRequest) -> int:
        """Train to the last step or an earlier end; return the exit code.

        Raises:
            InputError: An image cannot be read (a checkpoint has the steps before it); or the last
                checkpoint cannot be written; or the settings do not fit the checkpoint.
            NonFiniteLossError: The run cannot continue after a step that was not finite.
        """
        self.load_checkpoint()
        if self.ending and self.is_done():
            text = format_finished(self.state.step, self.state.best_map, ending=self.ending)
            self.print_plainly(f"{self.folder.path}: {text}")
            return FINISHED
        self.prepare()
        stop.hold_back()
        # From here on a signal to any rank ends with a checkpoint. The barrier is last: no rank may
        # hold back signals while another could still end at once and leave the others waiting.
        self.group.barrier()
        self.begin()
        # A signal that came during `begin` ends the run before its first step, on all ranks.
        stop.agree(self.group.all_gather(stop.received))
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
                    if stop or self.is_finished():
                        break
        # Such as an unreadable image: the steps before the error are saved.
        except InputError as error:
            if self.state.step == 0:
                raise
            self.save_and_wait()
            raise InputError(f"{error}; then continue with: {self.resuming_command}") from error
        self.save_and_wait()
        self.recorder.wait_for_files()
        self.strategy.close()
        if stop:
            text = f"{stop.name}: checkpoint written; continue with: {self.resuming_command}"
            self.print_plainly(text)
            return STOPPED_BY_SIGNAL
        self.finish()
        return FINISHED

    def load_checkpoint(self) -> None:
        """Restore weights, optimizer and position, if rank 0 has a checkpoint that fits."""
        checkpoint = self.checkpoint
        if checkpoint is not None:
            classes = self.description.classes
            # Compared before tensors are read: other classes would otherwise appear as wrong
            # shapes.
            require_same_data(checkpoint, classes=classes, images=len(self.data.train))
            checkpoint.load_training_state(self.model, self.optimizer, self.average)
        position = self.group.from_first(lambda: checkpoint.position if checkpoint else None)
        if position is None:
            return
        for part in (self.state, self.guard):
            part.load_state_dict(asdict(position))
        start = Position(position.step, position.epoch, position.images)
        self.plan = replace(self.plan, start=start)
        # With more ranks the remaining images of the epoch may not fill a step: `position` then
        # moves on to the next epoch, and the state must follow.
        position_now = self.plan.position(start.step)
        self.state.epoch, self.state.images = position_now.epoch, position_now.images

    def prepare(self) -> None:
        """Set up engine, batches, gradient averaging and strategy; restore the ranks' states."""
        config, averaging, checkpoint = self.config, self.averaging, self.checkpoint
        split = self.group.from_first(
            lambda: recorded_split(checkpoint, config, ranks=averaging.size)
        )
        # Before `prepare_training`: IPEX then splits each weight into two tensors.
        share_weights(self.group, self.model, self.optimizer, self.average)
        self.prepared = prepare_training(
            self.model,
            self.optimizer,
            engine=self.engine,
            precision=config.engine.precision,
            convolutions=config.engine.convolutions,
        )
        self.model, self.optimizer = self.prepared.model, self.prepared.optimizer
        self.batches = settle_batches(
            config,
            self.prepared,
            group=averaging,
            local_ranks=self.place.ranks.local_size,
            recorded=split,
        )
        # Loading starts only at the first step, so the sampler still accepts a new split.
        self.loading.batches.split = self.batches.images
        self.exchange = make_exchange(
            averaging,
            self.prepared,
            backend=config.distributed.backend,
            compress=config.distributed.compress,
            focal_form=config.engine.focal_loss,
            timeout_s=config.distributed.timeout_s,
            weight=self.batches.weight(averaging.rank),
            profiler=self.profiler,
        )
        # Without a cycle of references the trainer is freed as soon as the run ends, and with it
        # the loading processes, which are forks and hold the lock of the run's folder.
        trainer = weakref.proxy(self)
        self.strategy = make_strategy(
            config,
            self.prepared,
            group=self.group,
            averaging=averaging,
            exchange=self.exchange,
            average=self.average,
            place=self.place,
            loading=self.loading,
            plan=self.plan,
            guard=self.guard,
            checkpointer=self.checkpointer,
            profiler=self.profiler,
            metric_is_ready=lambda: trainer.evaluation is not None and trainer.evaluation.is_ready,
            print_note=self.print,
        )
        # Last: the engine may have replaced the model, whose running statistics are restored, and
        # nothing may draw random numbers between this and the first step.
        self.restore_rank_states()

    def restore_rank_states(self) -> None:
        """Restore random states and running statistics of each rank, and note differences."""
        checkpoint = self.checkpoint
        states = self.group.from_first(lambda: checkpoint.rank_states() if checkpoint else [])
        averages = self.average.norms if self.average else {}
        # With another number of ranks, no state belongs to any of the present ranks.
        if len(states) == self.group.size:
            try:
                load_rank_state_dict(states[self.group.rank], self.model, averages)
            except ValueError as error:
                raise InputError(f"{self.folder.checkpoints}: {error}") from error
        has_average = self.group.from_first(lambda: bool(checkpoint and checkpoint.has_average))
        # The average begins with the weights of a pretrained backbone, or of a run without one.
        if self.average is not None and not has_average:
            self.average.restart()
        if checkpoint is not None:
            self.notes += self.checkpointer.resume_from(checkpoint, epoch=self.epochs_done)
            changed = differences(checkpoint.state, self.config, self.setup())
            if changed:
                self.notes.append(
                    f"resumed under other conditions: {'; '.join(changed)}; training continues "
                    "from the same image, but not bit for bit as without the interruption"
                )

    def begin(self) -> None:
        """Create the run's folder and logs on rank 0, and print the settings of the run."""
        facts = self.facts()
        if self.group.is_first:
            config = config_to_tree(self.config)
            resume = self.checkpoint is not None
            self.folder.begin(
                config,
                ranks=ranks_as_json(facts),
                host_states=self.host_states,
                start=self.start,
                resume=resume,
            )
        steps = range(self.state.step + 1, self.plan.total_steps + 1)
        notes = (
            *self.group.notes,
            *stopping_notes(self.place.ranks, os.environ),
            *self.folder.notes,
            *self.profiler.notes(steps),
            *self.notes,
        )
        # Waits for all: no rank takes a step before rank 0 has the folder ready.
        notes_of_ranks = self.group.all_gather(notes)
        if not self.group.is_first:
            return
        begin_log(
            self.log,
            model=self.model,
            optimizer=self.optimizer,
            name=self.config.training.optimizer,
            training_images=len(self.data.train),
            validation_images=len(self.data.validation),
        )
        is_evaluated = self.state.current_map is not None
        self.log.write_to(self.folder.mlperf_log, step=self.state.step, is_evaluated=is_evaluated)
        self.recorder = Recorder(
            self.folder,
            console=self.console,
            first_step=self.state.step,
            target_map=self.config.training.target_map,
        )
        print_rows(self.console, describe_run(facts, step=self.state.step))
        for note in dict.fromkeys(note for rank_notes in notes_of_ranks for note in rank_notes):
            self.print(f"note: {note}")

    def train_epoch(self, stop: StopRequest) -> Iterator[EpochStep]:
        """Train to the epoch's or the run's end, and yield every step to be logged.

        Yields nothing once the run is finished or a signal came.
        """
        if stop or self.is_finished():
            return
        step = self.state.step
        position = self.plan.position(step)
        if position.images == 0:
            self.log.epoch_started(position.epoch + 1, step=step)
        title = f"epoch {position.epoch + 1}/{self.config.training.epochs}, steps"
        total = self.plan.total_steps
        with progress(self.console, title, total=total, start=step) as self.show_progress:
            yield from self.strategy.train_epoch(step, last=self.plan.end_of_epoch(step), stop=stop)

    def log_step(self, step: EpochStep) -> None:
        """Advance the state, and write a step to console, metrics and MLPerf's log.

        Raise the step's problem, if it has one, or NonFiniteLossError.
        """
        # Some ranks have ended: the others divide the validation images among themselves.
        if step.group is not None:
            self.group = self.checkpointer.group = step.group
            self.loading.share_evaluation(rank=step.group.rank, ranks=step.group.size)
        if step.nonfinite is not None:
            self.report_nonfinite(step.nonfinite)
        result, before = step.result, self.state.step
        if step.step is not None and step.step > before:
            self.state.advance(self.plan.position(step.step))
        if result is not None:
            for note in result.notes:
                self.print(note)
            self.log.stepped(images=result.images, seconds=result.run_seconds)
            epoch = self.plan.epochs_done(result.step)
            self.show_progress(step.done, self.recorder.step(result, epoch=epoch))
        if self.state.step > before and self.plan.ends_epoch(self.state.step):
            epoch_number = self.plan.position(self.state.step - 1).epoch + 1
            self.log.epoch_stopped(epoch_number, step=self.state.step)
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
            return
        try:
            folder = self.checkpointer.save_nonfinite(
                self.model,
                self.optimizer,
                self.checkpoint_state(),
                report=report.content,
                average=self.average,
            )
            details = f"details in {folder}"
        except InputError as error:
            details = str(error)
        # The launcher ends all ranks as soon as one ends: wait until rank 0 has written the files.
        self.group.barrier()
        raise NonFiniteLossError(f"{report.line}; {report.advice}; {details}")

    def log_bad_images(self, problems: tuple[str, ...], *, instead: str) -> None:
        """Write images that could not be read."""
        for problem in problems:
            self.console.print(f"{problem}; {instead}", soft_wrap=True)
            content = {"step": self.state.step, "problem": problem}
            self.recorder.record("bad_image", content)

    def log_bad_validation_images(self, problems: tuple[str, ...]) -> None:
        """Write validation images that could not be read, each once; InputError if too many."""
        new = tuple(self.loading.bad_images.note(problems))
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
        if not agree_on_weights(self.group, self.model, self.average):
            self.console.print("note: weights differed between ranks; all ranks now use rank 0's")
        # Each rank evaluates a part of the images, so all need the same statistics of norms.
        average_norms(self.group, trained_norms(self.model))
        if self.average is not None:
            average_norms(self.group, self.average.norms)
        # An evaluation may take as long as an epoch, so the steps before it are saved.
        self.save()
        self.log.evaluation_started(epoch=self.epochs_done, step=self.state.step)
        start = time.perf_counter()
        with self.average.in_model() if self.average else nullcontext():
            detections = detect_split(
                self.model,
                self.loading.validation,
                classes=self.data.classes,
                forward=self.prepared.forward,
                console=self.console,
                group=self.group,
                stop=stop,
                main_cpus=self.share.main_cpus,
                note_bad_images=self.log_bad_validation_images,
            )
        if detections is None:
            return
        work = MetricWork(
            self.data.validation.annotations,
            detections,
            self.config.evaluation.metric,
            self.folder.evaluations.resolve(),
            evaluation_name(self.state.step),
        )
        evaluation = BackgroundEvaluation(
            self.position(),
            epochs=self.epochs_done,
            detection_seconds=time.perf_counter() - start,
            work=work if self.group.is_first else None,
        )
        # Not after the last step, when there is nothing to overlap with. And not if these weights
        # are not on the disk: if they reach the target, they are the result of the run.
        overlaps = self.config.evaluation.overlap and self.state.step < self.plan.total_steps
        if overlaps and self.checkpointer.is_there(self.state.step):
            evaluation.start(spare_cpus=self.place.pinned.spare_cpus, training_cpus=self.share.cpus)
            self.evaluation = evaluation
        else:
            self.apply_evaluation(evaluation)

    def finish_evaluation(self) -> None:
        """Wait for the metric that is being computed in the background, and apply it."""
        evaluation, self.evaluation = self.evaluation, None
        if evaluation is not None:
            self.apply_evaluation(evaluation)

    def apply_evaluation(self, evaluation: BackgroundEvaluation) -> None:
        """Write an evaluation's mAP into state, checkpoint and logs.

        If it ends the run some steps later, by the target or by patience, the run returns to the
        evaluated weights: without overlap there would have been no later ones.
        """
        result = evaluation.wait()
        # Only rank 0 has the metric, but all ranks must take the same decisions.
        current_map = self.group.from_first(lambda: result.evaluation.map if result else 0.0)
        self.state.note_map(current_map)
        position = replace(
            evaluation.position,
            map_here=current_map,
            best_map=self.state.best_map,
            evaluations_since_best=self.state.evaluations_since_best,
        )
        step, epochs = position.step, evaluation.epochs
        steps_since = self.state.step - step
        is_reached = self.reaches_target(current_map)
        ends_here = is_reached or self.patience_is_exhausted()
        self.log.evaluated(current_map, epoch=epochs, step=step)
        if is_reached:
            self.log.reached_target()
        if steps_since == 0 or ends_here:
            self.state.load_state_dict(asdict(position))
        # The checkpoint comes before anything that might fail, such as drawing pictures.
        if steps_since == 0 and not self.checkpointer.is_there(step):
            # A failed write is retried once.
            self.save()
        if self.checkpointer.is_there(step):
            self.checkpointer.add_evaluation(position)
        if ends_here and steps_since:
            reason = "the target was reached" if is_reached else "training.patience ended"
            self.console.print(
                f"note: {reason} after step {step}; the {steps_since} steps since then are "
                "discarded"
            )
        if result is None:
            return
        warning = update_card(self.facts(), result.evaluation, step=step, epochs=epochs)
        if warning is not None:
            self.print_plainly(warning)
        write_files = partial(evaluation.wait_for_files, result) if evaluation.is_started else None
        self.recorder.evaluation(result, step=step, epoch=epochs, write_files=write_files)
        count = self.config.evaluation.pictures
        self.recorder.pictures(result, self.data.validation, step=step, count=count)

    def evaluation_is_due(self) -> bool:
        """Return whether the current weights should be evaluated before training continues."""
        step, running = self.state.step, self.evaluation
        is_running = running is not None and running.position.step == step
        is_known = self.state.current_map is not None
        return not is_known and not is_running and self.plan.evaluation_is_due(step)

    def is_finished(self) -> bool:
        """Return whether no further step is to be taken, see `ending`."""
        return self.ending is not None

    @property
    def ending(self) -> Ending | None:
        """Why no further step is to be taken; None: the run goes on."""
        if self.target_is_reached():
            return "target"
        if self.state.step >= self.plan.total_steps:
            return "length"
        return "patience" if self.patience_is_exhausted() else None

    def is_done(self) -> bool:
        """Return whether the run is finished, and its weights are evaluated."""
        return self.is_finished() and not self.evaluation_is_due()

    def target_is_reached(self) -> bool:
        """Return whether the current weights reached `training.target_map`."""
        return self.state.current_map is not None and self.reaches_target(self.state.current_map)

    def patience_is_exhausted(self) -> bool:
        """Return whether `training.patience` evaluations have passed without a better mAP."""
        patience = self.config.training.patience
        return patience is not None and self.state.evaluations_since_best >= patience

    def reaches_target(self, value: float) -> bool:
        """Return whether an mAP is at least `training.target_map`."""
        target = self.config.training.target_map
        return target is not None and value >= target

    def save(self) -> None:
        """Begin to write a checkpoint, unless this step's is there; a failure is a warning."""
        self.finish_evaluation()
        self.checkpointer.save(
            self.model,
            self.optimizer,
            self.checkpoint_state(),
            epoch=self.epochs_done,
            average=self.average,
        )

    def save_and_wait(self) -> None:
        """Write a checkpoint, and wait until it is on the disk; InputError if it cannot be."""
        self.save()
        if not self.checkpointer.is_there(self.state.step):
            raise InputError(
                f"{self.folder.checkpoints}: the checkpoint after step {self.state.step} could not "
                f"be written: {self.checkpointer.problem}; free disk space, then continue with: "
                f"{self.resuming_command}"
            )

    def finish(self) -> None:
        """Print how the run ended and where its files are; add it to its submission."""
        validation = self.data.validation
        self.recorder.closing(
            ending=self.ending,
            patience=self.config.training.patience,
            step=self.state.step,
            best_map=self.state.best_map,
            bad_images=len(self.loading.bad_images.seen),
            example=validation.image_folder / validation.annotations.file_names[0],
        )
        submission = self.config.mlperf.submission
        if submission is not None and self.group.is_first:
            submit(self.folder.path, submission, console=self.console)

    def position(self) -> TrainingPosition:
        """Return the progress of the run, as in a checkpoint."""
        parts = self.state.state_dict() | self.guard.state_dict()
        return TrainingPosition(**parts, images_per_epoch=self.plan.images_per_epoch)

    def setup(self) -> dict[str, object]:
        """Return the conditions of the next steps besides configuration and checkpoint."""
        return describe_setup(
            self.config,
            ranks=self.group.size,
            engine=self.engine,
            exchange=self.exchange_name,
            split=self.batches.images,
        )

    def checkpoint_state(self) -> State:
        """Return the content of `state.json`, without the states of the ranks."""
        return State(
            model=self.description,
            position=self.position(),
            setup=self.setup(),
            config=config_to_tree(self.config),
            random_states=[],
            parts={},
        )

    def facts(self) -> RunFacts:
        """Return the facts about the run for the console, `environment.json` and model cards."""
        sizes = [(value.numel(), value.requires_grad) for value in self.model.parameters()]
        return RunFacts(
            config=self.config,
            folder=self.folder,
            data=self.data,
            model=self.description,
            parameters=sum(size for size, _ in sizes),
            trained_parameters=sum(size for size, trains in sizes if trains),
            total_steps=self.plan.total_steps,
            images_per_step=self.plan.images_per_step,
            engine=self.engine,
            loading=self.loading.describe(),
            hosts=self.group.hosts,
            averaging_ranks=self.averaging.size,
            exchange=self.exchange_name,
            batches=self.batches,
            context=self.place,
            start=self.start,
            rows=self.strategy.describe(),
        )

    @property
    def epochs_done(self) -> float:
        """Completed epochs, with the fraction of the current one."""
        return self.plan.epochs_done(self.state.step)

    @property
    def exchange_name(self) -> str:
        """Backend of gradient averaging: `shared memory`, `gloo` or `ccl`; `none` for one rank."""
        return self.exchange.way if self.exchange else "none"

    @property
    def resuming_command(self) -> str:
        """The command that continues this run."""
        return resuming_command(launcher_command(self.place.ranks))

    def print_plainly(self, text: str) -> None:
        """Print a line that scripts may read, without colours, on rank 0."""
        if self.group.is_first:
            print(text, flush=True)
