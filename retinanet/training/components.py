"""The components of a run: data, model and optimizer, and what trains, saves and describes them.

`RunComponents` opens and builds them by the configuration, restores them from a checkpoint, and
prepares them for the first step. `retinanet.training.trainer` drives them from there, and has the
run's `Progress`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial

from rich.console import Console
from torch.optim import Optimizer

from common.errors import InputError
from data.dataset import Batch
from data.rare_classes import places_per_epoch
from launch.pinning import RankContext
from launch.process_group import ProcessGroup
from retinanet.config import Config, config_to_tree
from retinanet.engine.engines import prepare_training
from retinanet.evaluation.detect import detect_split
from retinanet.evaluation.matching import SplitDetections
from retinanet.training.agreement import (
    agree_on_weights,
    average_norms,
    share_rank_states,
    share_weights,
)
from retinanet.training.async_groups.groups import compute_group
from retinanet.training.averaging import make_exchange
from retinanet.training.batch_split import settle_batches
from retinanet.training.build import (
    build_model,
    build_optimizer,
    notes_on_backbone,
    starting_weights,
)
from retinanet.training.checkpoint import Checkpoint, Contents
from retinanet.training.checkpointer import Checkpointer, gathered
from retinanet.training.data import Loading, open_run_data
from retinanet.training.detector_weights import start_from_detector
from retinanet.training.ema import WeightAverage
from retinanet.training.evaluation import BackgroundEvaluation
from retinanet.training.loop import StepOptions, StepProfiler, StepResult, train_one_epoch
from retinanet.training.nonfinite import NonFiniteGuard, NonFiniteReport
from retinanet.training.progress import Progress
from retinanet.training.resume import (
    describe_setup,
    differences,
    recorded_split,
    require_same_data,
)
from retinanet.training.run_folder import RunFolder
from retinanet.training.schedule import StepPlan, learning_rate
from retinanet.training.signals import StopRequest
from retinanet.training.slow_hosts import BackgroundLoad
from retinanet.training.train_state import (
    State,
    describe_model,
    load_rank_state_dict,
    rank_norms,
    seed_everything,
    trained_norms,
)


class RunComponents:
    """The components of a run on this rank. All ranks call the methods at the same steps."""

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
        profiler: StepProfiler,
    ) -> None:
        """Open data and build the model; rank 0 resumes from `checkpoint`, the others have none.

        Raises:
            InputError: The data or the weights to start from do not fit, or cannot be read.
        """
        self.config, self.folder, self.checkpoint, self.engine = config, folder, checkpoint, engine
        self.place, self.console, self.profiler = place, console, profiler
        self.print = partial(console.print, soft_wrap=True, markup=False)
        """Prints a line above the progress bar; on ranks other than 0 the console is quiet."""
        self.share = place.pinned.share
        """This rank's cores."""
        self.group = group
        """The ranks of the job that have not ended."""
        self.evaluation: BackgroundEvaluation | None = None
        """The evaluation whose metric is being computed while training continues."""
        seed_everything(config.run.seed)
        self.data = open_run_data(config, scenes_folder=folder.scenes, console=console, group=group)
        classes, groups = self.data.classes, config.distributed.groups
        self.class_weights = self.data.train.class_weights(config.training.class_weights)
        """The classes' weights in the loss [K]; None if all are 1."""
        self.rare_classes = self.data.train.describe_rare(self.class_weights)
        """Rows about what is done for rare classes, if anything."""
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
        self.description = describe_model(config, classes)
        self.open_for_averaging_ranks()

    def open_for_averaging_ranks(self) -> None:
        """Create plan, loaders, checkpointer and guard for the ranks that average with this one."""
        config, group, training = self.config, self.group, self.config.training
        groups, timeout_s = config.distributed.groups, config.distributed.timeout_s
        is_alone = groups == 1
        self.averaging = group if is_alone else compute_group(group, groups, timeout_s=timeout_s)
        """The ranks that average their gradients with this one."""
        self.plan = StepPlan(
            images_per_epoch=places_per_epoch(self.data.train.images),
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

    def load_checkpoint(self) -> Progress | None:
        """Restore weights and optimizer, if rank 0 has a checkpoint; return its position.

        Raises:
            InputError: The checkpoint does not fit the data or the settings.
        """
        checkpoint = self.checkpoint
        if checkpoint is not None:
            classes = self.description.classes
            # Compared before tensors are read: other classes would otherwise appear as wrong
            # shapes.
            require_same_data(checkpoint, classes=classes, images=self.plan.images_per_epoch)
            checkpoint.load_training_state(self.model, self.optimizer, self.average)
        position = self.group.from_first(
            lambda: checkpoint.position if checkpoint else None, Progress | None
        )
        if position is not None:
            self.guard.skipped = position.skipped_steps
            self.plan = replace(self.plan, start=position)
        return position

    def prepare(self) -> None:
        """Set up engine, batches and gradient averaging; call `restore_rank_states` afterwards."""
        config, averaging, checkpoint = self.config, self.averaging, self.checkpoint
        split = self.group.from_first(
            lambda: recorded_split(checkpoint, config, ranks=averaging.size), tuple[int, ...]
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
        self.exchange = make_exchange(
            config,
            self.prepared,
            group=averaging,
            weight=self.batches.weight(averaging.rank),
            class_weights=self.class_weights,
            profiler=self.profiler,
        )
        # Loading starts only at the first step, so the sampler still accepts a new split.
        self.loading.batches.split = self.batches.images
        place = self.group.place_of(self.group.rank)
        self.background_load = BackgroundLoad(self.share.cpus, place=place)

    def restore_rank_states(self) -> None:
        """Restore random states and running statistics of each rank, and note differences.

        The engine may have replaced the model, whose statistics these are, and nothing may draw
        random numbers between this and the first step.
        """
        checkpoint = self.checkpoint
        averages = self.average.norms if self.average else {}
        states = share_rank_states(
            self.group,
            lambda: checkpoint.rank_states() if checkpoint else [],
            norms=rank_norms(self.model, averages),
        )
        # With another number of ranks, no state belongs to any of the present ranks.
        if len(states) == self.group.size:
            try:
                load_rank_state_dict(states[self.group.rank], self.model, averages)
            except ValueError as error:
                raise InputError(f"{self.folder.checkpoints}: {error}") from error
        has_average = self.group.from_first(
            lambda: bool(checkpoint and checkpoint.has_average), bool
        )
        # The average begins with the weights of a pretrained backbone, or of a run without one.
        if self.average is not None and not has_average:
            self.average.restart()
        if checkpoint is not None:
            epoch = self.plan.epochs_done(self.plan.start.step)
            self.notes += self.checkpointer.resume_from(checkpoint, epoch=epoch)
            changed = differences(checkpoint.state, self.config, self.setup())
            if changed:
                self.notes.append(
                    f"resumed under other conditions: {'; '.join(changed)}; training continues "
                    "from the same image, but not bit for bit as without the interruption"
                )

    def take_steps(
        self,
        batches: Iterable[Batch],
        *,
        first_step: int,
        rate_of: Callable[[int], float] | None = None,
        optimizer: Optimizer | None = None,
    ) -> Iterator[StepResult]:
        """Take steps on this rank's batches, see `train_one_epoch`.

        `rate_of` maps completed steps, counted as `first_step`, to the next one's learning rate, by
        default by the plan; `optimizer` replaces the run's.
        """
        training = self.config.training
        return train_one_epoch(
            self.prepared if optimizer is None else replace(self.prepared, optimizer=optimizer),
            batches,
            learning_rate=rate_of or self.learning_rate,
            first_step=first_step,
            options=StepOptions(
                gradient_accumulation=training.gradient_accumulation,
                max_grad_norm=training.clip_gradient_norm,
                focal_form=self.config.engine.focal_loss,
                class_weights=self.class_weights,
                main_cpus=self.share.main_cpus,
            ),
            exchange=self.exchange,
            average=self.average,
            profiler=self.profiler,
        )

    def learning_rate(self, step: int) -> float:
        """Return the rate of the step after `step` steps of the run."""
        return learning_rate(self.config.training, self.plan, step)

    def with_load(self, result: StepResult) -> StepResult:
        """Return this rank's step, with a note if other programs use its cores."""
        note = self.background_load.note()
        return replace(result, notes=(note,)) if note else result

    def check_finite(
        self, result: StepResult, *, is_decided: bool = False
    ) -> NonFiniteReport | None:
        """Return a report if a step was not finite; see `NonFiniteGuard.check`."""
        return self.guard.check(
            result.step,
            result.nonfinite,
            gradient_norm=result.gradient_norm,
            learning_rate=result.learning_rate,
            is_decided=is_decided,
        )

    def new_bad_images(self, result: StepResult) -> tuple[tuple[str, ...], InputError | None]:
        """Return the new unreadable images of a step, and an error if there are too many."""
        try:
            return tuple(self.loading.bad_images.note(result.bad_images)), None
        except InputError as problem:
            # The error is returned, not raised: the caller still logs the step before the run ends.
            return (), problem

    def has_moved_loading(self, result: StepResult) -> bool:
        """Return whether the epoch must continue from a loading process, as its steps show."""
        reason = self.loading.move_out_if_needed(result)
        if reason:
            self.print(reason)
        return reason is not None

    def checkpoint_is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step` steps, as this rank sees it."""
        return self.checkpointer.is_due(step=step, epoch=self.plan.epochs_done(step))

    @property
    def metric_is_ready(self) -> bool:
        """Whether the metric in the background has been computed, as this rank sees it."""
        return self.evaluation is not None and self.evaluation.is_ready

    def continue_with(self, group: ProcessGroup) -> None:
        """Go on with the remaining ranks, which divide the validation images among themselves."""
        self.group = self.checkpointer.group = group
        self.loading.share_evaluation(rank=group.rank, ranks=group.size)

    def agree_on_weights(self) -> None:
        """Make weights and statistics of norms equal on all ranks, with a note if they were not."""
        if not agree_on_weights(self.group, self.model, self.average):
            self.console.print("note: weights differed between ranks; all ranks now use rank 0's")
        # Each rank evaluates a part of the images, so all need the same statistics of norms.
        average_norms(self.group, trained_norms(self.model))
        if self.average is not None:
            average_norms(self.group, self.average.norms)

    def detect(
        self, stop: StopRequest, *, note_bad_images: Callable[[tuple[str, ...]], None]
    ) -> SplitDetections | None:
        """Detect in the validation images, with averaged weights if there are any.

        See `detect_split`.
        """
        with self.average.in_model() if self.average else nullcontext():
            return detect_split(
                self.model,
                self.loading.validation,
                classes=self.data.classes,
                forward=self.prepared.forward,
                console=self.console,
                group=self.group,
                stop=stop,
                main_cpus=self.share.main_cpus,
                note_bad_images=note_bad_images,
            )

    def gathered(self, position: Progress) -> Contents | None:
        """Return the contents of a checkpoint, see `checkpointer.gathered`."""
        state = State(
            model=self.description,
            position=position,
            setup=self.setup(),
            config=config_to_tree(self.config),
            random_states=[],
            parts={},
        )
        return gathered(self.group, self.model, self.optimizer, state, self.average)

    def setup(self) -> dict[str, object]:
        """Return the conditions of the next steps besides configuration and checkpoint."""
        return describe_setup(
            self.config,
            ranks=self.group.size,
            engine=self.engine,
            exchange=self.exchange_name,
            split=self.batches.images,
        )

    @cached_property
    def shared_images(self) -> int:
        """The number of validation images that the run is trained on."""
        return self.data.validation.count_images_in(self.data.train)

    @property
    def exchange_name(self) -> str:
        """The way of gradients, see `GradientExchange.way`; `none` for one rank."""
        return self.exchange.way if self.exchange else "none"
