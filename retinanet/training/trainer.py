"""A training run: the objects that it consists of, and how far it has come.

TODO-DOC A run's checkpoints: begun between steps, left behind at its end, and when a step breaks it.

TODO-DOC What a run does about a step whose loss or gradients are not finite.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from rich.console import Console
from torch.optim import Optimizer

from common.cli import resuming_command
from common.console import progress
from data.dataset import DetectionData
from launch.mpirun import launcher_command
from launch.pinning import RankContext
from launch.process_group import ProcessGroup
from launch.run import stopping_notes
from retinanet.config import Config, config_to_tree
from retinanet.engine.engines import prepare_training
from retinanet.engine.gradient_sync import GradientExchange
from retinanet.mlperf.log import MlperfLog
from retinanet.mlperf.submission import submit
from retinanet.mlperf.training_log import begin_log
from retinanet.model.retinanet import RetinaNet
from retinanet.training.async_groups.epoch import rest_of_epoch_in_groups
from retinanet.training.async_groups.groups import (
    ComputeGroups,
    compute_group,
    living_group,
    make_compute_groups,
)
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.checkpoint_state import ModelDescription
from retinanet.training.checkpointer import Checkpointer
from retinanet.training.data import Loading
from retinanet.training.distributed import agreed_batches, make_exchange, merged, share_weights
from retinanet.training.evaluation import PendingEvaluation, evaluate, settle
from retinanet.training.loop import NO_PROFILER, StepProfiler, StepResult, train_one_epoch
from retinanet.training.nonfinite import NonFiniteSteps
from retinanet.training.rank_speed import (
    BackgroundLoad,
    SlowRank,
    advice_on_slow_rank,
    settle_batches,
)
from retinanet.training.recorder import (
    NullRecorder,
    Recorder,
    describe_run,
    described,
    facts_of_ranks,
)
from retinanet.training.resume import recorded_split
from retinanet.training.run_checkpoints import begin_checkpoint, leave_checkpoint, note_gradients
from retinanet.training.run_folder import RunFolder
from retinanet.training.schedule import learning_rate_factor, plan_steps
from retinanet.training.signals import StopRequest


class Trainer:
    """What `train.py` drives: it knows the next step, and whether an evaluation comes first."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        *,
        data: DetectionData,
        model: RetinaNet,
        optimizer: Optimizer,
        console: Console,
        place: RankContext,
        group: ProcessGroup,
        phases: StepProfiler = NO_PROFILER,
        log: MlperfLog | None = None,
    ) -> None:
        self.log = log or MlperfLog()
        self.place = place
        self.group = group
        """All ranks that there are."""
        self.compute_group = compute_group(
            group,
            config.distributed.groups,
            comm_cpus=place.pinned.share.comm_cpus,
            timeout_s=config.distributed.timeout_s,
        )
        """Those of them that average their gradients with this one."""
        self.groups: ComputeGroups | None = None
        """Where there are several."""
        self.phases = phases
        training = config.training
        self.config = config
        self.slow_rank = SlowRank(group.hosts, advice=advice_on_slow_rank(config))
        share = place.pinned.share
        self.background_load = BackgroundLoad(
            share.cpus, place=f"rank {group.rank} on {group.hosts[group.rank]}"
        )
        self.folder = folder
        self.data = data
        self.model = model
        self.optimizer = optimizer
        self.console = console
        self.description = ModelDescription(
            num_classes=data.classes.num_classes,
            norm=config.model.norm,
            trainable_layers=config.model.trainable_layers,
            image_size=config.data.image_size,
            precision=config.engine.precision,
            classes=data.classes.to_json(),
        )
        self.plan = plan_steps(
            images_per_epoch=len(data.train),
            images_per_batch=training.batch_size * self.compute_group.size,
            gradient_accumulation=training.gradient_accumulation,
            epochs=training.epochs,
            max_steps=training.max_steps,
            evaluate_every=config.evaluation.every,
        )
        self.loading = Loading(
            data,
            batch_size=training.batch_size,
            evaluation_batch_size=config.evaluation.batch_size,
            seed=config.run.seed,
            workers=config.data.workers,
            cores=place.pinned.share.loader_cpus,
            bad_image_limit=config.data.bad_image_limit,
            rank=self.compute_group.rank,
            ranks=self.compute_group.size,
            evaluation_rank=self.group.rank,
            evaluation_ranks=self.group.size,
        )
        self.saving = Checkpointer(
            folder.checkpoints,
            every=config.checkpoint.every,
            keep=config.checkpoint.keep,
            group=group,
            warn=lambda text: console.print(text, soft_wrap=True, markup=False),
        )
        self.step = 0
        self.notes: list[str] = []
        """What rank 0 has to say before the first step."""
        self.nonfinite = NonFiniteSteps(training.on_nonfinite, limit=training.nonfinite_limit)
        self.record: Recorder | NullRecorder = NullRecorder()
        self.exchange: GradientExchange | None = None
        self.map_here: float | None = None
        """mAP of the weights as they are; None where they have not been evaluated."""
        self.pending: PendingEvaluation | None = None
        """The evaluation whose metric is being computed beside the training."""
        self.best_map: float | None = None

    def prepare(self, engine: str, checkpoint: Checkpoint | None) -> None:
        """Let an engine arrange model and optimizer, and split batches among the ranks.

        Args:
            engine: `torch` or `ipex`.
            checkpoint: The one that rank 0 has taken up; the other ranks' do not matter.

        Raises:
            InputError: The engine does not work here.
        """
        self.engine = engine
        share_weights(self.group, self.model, self.optimizer)
        self.prepared = prepare_training(
            self.model,
            self.optimizer,
            engine=engine,
            precision=self.config.engine.precision,
            convolutions=self.config.engine.convolutions,
        )
        self.model, self.optimizer = self.prepared.model, self.prepared.optimizer
        self.split_batches(checkpoint)
        distributed = self.config.distributed
        self.groups = make_compute_groups(
            self.config,
            self.prepared,
            everybody=self.group,
            own=self.compute_group,
            regroup=partial(
                living_group,
                self.group,
                comm_cpus=self.place.pinned.share.comm_cpus,
                timeout_s=distributed.timeout_s,
            ),
            comm_cpus=self.place.pinned.share.comm_cpus,
        )
        self.exchange = make_exchange(
            self.compute_group,
            self.prepared,
            backend=distributed.backend,
            compress=distributed.compress,
            focal_form=self.config.engine.focal_loss,
            timeout_s=distributed.timeout_s,
            weight=self.batches.weight(self.compute_group.rank),
            phases=self.phases,
        )

    def split_batches(self, checkpoint: Checkpoint | None) -> None:
        """Settle how many images each rank has of a batch, as the run had it before if it can.

        Args:
            checkpoint: See `prepare`.
        """
        ranks = self.compute_group.size
        self.batches = settle_batches(
            self.config,
            self.prepared,
            group=self.compute_group,
            local_ranks=self.place.ranks.local_size,
            recorded=self.group.from_first(
                lambda: recorded_split(checkpoint, self.config, ranks=ranks)
            ),
        )
        self.loading.batches.split = self.batches.images

    def begin(self, *, resume: bool) -> None:
        """Begin the run's folder and record, and say what is about to happen; rank 0 does it.

        Args:
            resume: Whether rank 0 goes on from a checkpoint; the other ranks' does not matter.

        Raises:
            InputError: The folder cannot be written.
        """
        if self.group.is_first:
            ranks = facts_of_ranks(self)
            self.folder.begin(config_to_tree(self.config), ranks=ranks, resume=resume)
        steps = range(self.step + 1, self.plan.total_steps + 1)
        # Waits for all: none takes a step before rank 0 has the folder ready.
        stopping = stopping_notes(self.place.ranks, os.environ)
        own_notes = (
            *self.group.notes,
            *stopping,
            *self.folder.notes,
            *self.phases.notes(steps),
            *self.notes,
        )
        notes = self.group.all_gather(own_notes)
        if not self.group.is_first:
            return
        self.begin_log()
        self.record = Recorder(
            self.folder,
            console=self.console,
            first_step=self.step,
            target_map=self.config.training.target_map,
        )
        describe_run(self.console, described(self))
        for note in dict.fromkeys(note for of_rank in notes for note in of_rank):
            self.console.print(f"note: {note}", soft_wrap=True, markup=False)

    def begin_log(self) -> None:
        """Say what MLPerf's log wants to know of the run, and write the log from here on.

        Raises:
            InputError: It cannot be written.
        """
        begin_log(
            self.log,
            model=self.model,
            optimizer=self.optimizer,
            name=self.config.training.optimizer,
            training_images=len(self.data.train),
            validation_images=len(self.data.validation),
        )
        file, is_evaluated = self.folder.mlperf_log, self.map_here is not None
        self.log.write_to(file, step=self.step, is_evaluated=is_evaluated)

    def evaluation_is_due(self) -> bool:
        """Whether the weights as they are should be evaluated before training goes on."""
        is_pending = self.pending is not None and self.pending.position.step == self.step
        known = self.map_here is not None or is_pending
        return not known and self.plan.evaluation_is_due(self.step)

    def is_finished(self) -> bool:
        """Whether the last step is done or the target is reached."""
        return self.step >= self.plan.total_steps or self.target_is_reached()

    def target_is_reached(self) -> bool:
        """Whether the last evaluation reached `training.target_map`."""
        return self.map_here is not None and self.reaches_target(self.map_here)

    def reaches_target(self, found: float) -> bool:
        """Whether an mAP is at least `training.target_map`."""
        target = self.config.training.target_map
        return target is not None and found >= target

    def evaluate(self, stop: StopRequest) -> None:
        """Evaluate the weights as they are; the metric may come some steps later."""
        evaluate(self, stop)

    def settle(self) -> None:
        """Wait for a metric that is being computed beside the training."""
        settle(self)

    def rest_of_epoch(self, stop: StopRequest) -> Iterator[StepResult]:
        """Train to the epoch's or the run's end; agree on every step, note it, then yield.

        There is nothing to do once the run is finished or asked to stop.
        """
        if stop or self.is_finished():
            return
        start = self.plan.position(self.step)
        epoch = start.epoch
        if start.images == 0:
            self.log.epoch_started(epoch + 1, step=self.step)
        if self.groups is not None:
            yield from rest_of_epoch_in_groups(self, self.groups, stop, rate=self.learning_rate)
            return
        training = self.config.training
        title = f"epoch {epoch + 1}/{training.epochs}, steps"
        total = self.plan.total_steps
        last = self.plan.end_of_epoch(self.step)
        with progress(self.console, title, total=total, start=self.step) as advance:
            while self.step < last and not self.target_is_reached():
                here = self.plan.position(self.step)
                self.loading.batches.set_position(here.epoch, here.images)
                for own in train_one_epoch(
                    self.prepared,
                    agreed_batches(self.group, self.loading.train),
                    learning_rate=self.learning_rate,
                    first_step=self.step,
                    gradient_accumulation=training.gradient_accumulation,
                    longest_gradient=training.clip_gradient_norm,
                    focal_form=self.config.engine.focal_loss,
                    exchange=self.exchange,
                    phases=self.phases,
                    main_cpus=self.place.pinned.share.main_cpus,
                ):
                    result, checkpoint_is_due, metric_is_ready = self.agree(own, stop)
                    note_gradients(self, result)
                    self.print_notes(result)
                    self.step = result.step
                    self.map_here = None
                    self.log.stepped(images=result.images, seconds=result.seconds)
                    if self.step >= last:
                        self.log.epoch_stopped(epoch + 1, step=self.step)
                    advance(self.step, self.record.step(result, epoch=self.epochs_done))
                    self.note_bad_images(result.bad_images)
                    if metric_is_ready:
                        self.settle()
                    if checkpoint_is_due and not stop and not self.evaluation_is_due():
                        begin_checkpoint(self)
                    yield result
                    if self.step >= last or self.target_is_reached():
                        return
                    if self.loading_moved_out(own):
                        break

    def learning_rate(self, step: int) -> float:
        """Of the step after `step` steps."""
        training = self.config.training
        return training.learning_rate * learning_rate_factor(
            self.plan.schedule_step(step),
            warmup_steps=round(training.warmup_epochs * self.plan.steps_per_epoch),
            warmup_factor=training.warmup_factor,
            total_steps=self.plan.schedule_step(self.plan.total_steps),
            schedule=training.schedule,
        )

    def regroup(self, group: ProcessGroup) -> None:
        """Go on with the ranks that are left; they call it."""
        self.group = group
        self.saving.regroup(group)
        self.loading.share_evaluation(rank=group.rank, ranks=group.size)

    def agree(self, own: StepResult, stop: StopRequest) -> tuple[StepResult, bool, bool]:
        """The step of all ranks, whether a checkpoint is due, and whether a metric has come.

        All learn of a signal that one has got; rank 0's clock counts for all.
        """
        is_due = self.saving.is_due(step=own.step, epoch=self.plan.epochs_done(own.step))
        is_ready = self.pending is not None and self.pending.is_ready
        told = self.group.all_gather((self.with_load(own), stop.received, is_due, is_ready))
        results, received, due, ready = zip(*told, strict=True)
        stop.agree(received)
        slow = self.slow_rank.heard(results)
        if slow is not None:
            self.console.print(slow, soft_wrap=True)
        return merged(results), any(due), any(ready)

    @property
    def epochs_done(self) -> float:
        """Epochs until now, with the share of the running one."""
        return self.plan.epochs_done(self.step)

    def agree_to_stop(self, stop: StopRequest) -> None:
        """All learn, before the first step, of a signal that one has got until now."""
        stop.agree(self.group.all_gather(stop.received))

    def loading_moved_out(self, result: StepResult) -> bool:
        """Whether the epoch must go on from a loading process, as its steps have shown."""
        reason = self.loading.move_out_if_needed(result)
        if reason:
            self.console.print(reason)
        return reason is not None

    def with_load(self, own: StepResult) -> StepResult:
        """Return this rank's step with a note about other programs on its cores, if there are."""
        note = self.background_load.note()
        return replace(own, notes=(note,)) if note else own

    def print_notes(self, result: StepResult) -> None:
        """Print what the ranks noted about a step; on ranks other than 0 the console is quiet."""
        for note in result.notes:
            self.console.print(note, soft_wrap=True, markup=False)

    def note_bad_images(
        self, problems: tuple[str, ...], *, instead: str = "another image stands in for it"
    ) -> None:
        """Tell of images that could not be read, each once.

        Raises:
            InputError: There are too many.
        """
        for problem in self.loading.bad_images.note(problems):
            self.console.print(f"{problem}; {instead}", soft_wrap=True)
            self.record.bad_image(problem, step=self.step)

    @property
    def resuming_command(self) -> str:
        """What a user types to go on with this run."""
        return resuming_command(launcher_command(self.place.ranks))

    def say(self, text: str) -> None:
        """A line for the person who started the run; rank 0 says it."""
        if self.group.is_first:
            print(text, flush=True)

    def leave(self) -> None:
        """Leave a checkpoint, and all of the last evaluation, on the disk.

        Raises:
            InputError: The checkpoint could not be written.
        """
        leave_checkpoint(self)
        self.record.wait_for_files()
        if self.groups is not None:
            self.groups.update.close(timeout_s=self.config.distributed.timeout_s)

    def finish(self) -> None:
        """Say how the run ended, where its work lies, and what to try next.

        Raises:
            InputError: The last checkpoint could not be written, or the run could not be added to
                its submission.
        """
        self.leave()
        self.record.closing(
            is_reached=self.target_is_reached(),
            step=self.step,
            best_map=self.best_map,
            bad_images=len(self.loading.bad_images.seen),
            example=self.data.validation.image_folder
            / self.data.validation.annotations.file_names[0],
        )
        submission = self.config.mlperf.submission
        if submission is not None and self.group.is_first:
            submit(self.folder.path, submission, console=self.console)
