"""A training run: the objects that it consists of, and how far it has come."""

from collections.abc import Iterator
from functools import partial

from rich.console import Console
from torch.optim import Optimizer

from data.opening import DetectionData
from launch.group.process_group import ProcessGroup
from launch.place import Place
from launch.start.starting_words import starting_words
from retinanet.command_line import resuming_command
from retinanet.config import Config, config_to_tree
from retinanet.engine.engines import prepare_training
from retinanet.engine.gradient_exchange import GradientExchange
from retinanet.model import RetinaNet
from retinanet.progress import progress
from retinanet.training.agreement import (
    agree_on_weights,
    agreed_batches,
    average_norms,
    merged,
    share_weights,
)
from retinanet.training.checkpoint import ModelDescription, TrainingPosition
from retinanet.training.checkpoint_files import point_to, remove_others, save_checkpoint
from retinanet.training.evaluate_split import evaluate_split
from retinanet.training.exchange import make_exchange
from retinanet.training.loading import Loading
from retinanet.training.loop import StepResult, train_one_epoch
from retinanet.training.phases import UNWATCHED, Phases
from retinanet.training.plan import plan_steps
from retinanet.training.report import describe_run
from retinanet.training.run_description import described
from retinanet.training.run_folder import RunFolder
from retinanet.training.run_record import RunRecord
from retinanet.training.schedule import learning_rate_factor
from retinanet.training.signals import StopRequest
from retinanet.training.silent_record import SilentRecord


class Run:
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
        place: Place,
        group: ProcessGroup,
        phases: Phases = UNWATCHED,
    ) -> None:
        self.place = place
        self.group = group
        self.phases = phases
        training = config.training
        self.config = config
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
        self.loading = Loading(
            data,
            batch_size=training.batch_size,
            evaluation_batch_size=config.evaluation.batch_size,
            seed=config.run.seed,
            workers=config.data.workers,
            cores=place.pinned.share.loader_cpus,
            bad_image_limit=config.data.bad_image_limit,
            rank=self.group.rank,
            ranks=self.group.size,
        )
        self.plan = plan_steps(
            batches_per_epoch=len(self.loading.batches),
            gradient_accumulation=training.gradient_accumulation,
            epochs=training.epochs,
            max_steps=training.max_steps,
            evaluate_every=config.evaluation.every,
        )
        self.step = 0
        self.record: RunRecord | SilentRecord = SilentRecord()
        self.exchange: GradientExchange | None = None
        self.map_here: float | None = None
        """mAP of the weights as they are; None where they have not been evaluated."""
        self.best_map: float | None = None

    def prepare(self, engine: str) -> None:
        """Let an engine arrange model and optimizer, once rank 0 has a checkpoint in its own.

        Raises:
            InputError: The engine does not work here.
        """
        self.engine = engine
        self.share_start()
        self.prepared = prepare_training(
            self.model,
            self.optimizer,
            engine=engine,
            precision=self.config.engine.precision,
            convolutions=self.config.engine.convolutions,
        )
        self.model, self.optimizer = self.prepared.model, self.prepared.optimizer
        distributed = self.config.distributed
        self.exchange = make_exchange(
            self.group,
            self.prepared,
            backend=distributed.backend,
            compress=distributed.compress,
            focal_form=self.config.engine.focal_loss,
            timeout_s=distributed.timeout_s,
            phases=self.phases,
        )

    def share_start(self) -> None:
        """Begin on all ranks where rank 0 begins."""
        share_weights(self.group, self.model, self.optimizer)
        self.step, self.map_here, self.best_map = self.group.from_first(
            lambda: (self.step, self.map_here, self.best_map)
        )

    def begin(self) -> None:
        """Open the record and say what is about to happen; other ranks than 0 have none."""
        steps = range(self.step + 1, self.plan.total_steps + 1)
        # Waits for all: none takes a step before rank 0 has the folder ready.
        notes = self.group.all_gather((*self.group.notes, *self.phases.notes(steps)))
        if not self.group.is_first:
            return
        self.record = RunRecord(
            self.folder,
            console=self.console,
            steps_per_epoch=self.plan.steps_per_epoch,
            first_step=self.step,
            target_map=self.config.training.target_map,
        )
        describe_run(self.console, described(self))
        for note in dict.fromkeys(note for of_rank in notes for note in of_rank):
            self.console.print(f"note: {note}", soft_wrap=True)

    def evaluation_is_due(self) -> bool:
        """Whether the weights as they are should be evaluated before training goes on."""
        return self.map_here is None and self.plan.evaluation_is_due(self.step)

    def is_finished(self) -> bool:
        """Whether the last step is done or the target is reached."""
        return self.step >= self.plan.total_steps or self.target_is_reached()

    def target_is_reached(self) -> bool:
        """Whether the last evaluation reached `training.target_map`."""
        target = self.config.training.target_map
        return target is not None and self.map_here is not None and self.map_here >= target

    def evaluate(self, stop: StopRequest) -> None:
        """Evaluate and write a checkpoint, unless `stop` comes true before the evaluation's end."""
        if not agree_on_weights(self.group, self.model):
            self.console.print("note: weights differed between ranks; all go on with rank 0's")
        average_norms(self.group, self.model)
        result = evaluate_split(
            self.model,
            self.loading.validation,
            classes=self.data.classes,
            forward=self.prepared.forward,
            console=self.console,
            group=self.group,
            stop=stop,
            note_bad_images=partial(
                self.note_bad_images, instead="it is evaluated as an image without detections"
            ),
        )
        if result is None:
            return
        self.map_here = result.evaluation.map
        self.record.evaluation(result, step=self.step)
        self.save_checkpoint()  # before anything that might fail, such as drawing
        self.record.pictures(
            result,
            self.data.validation,
            step=self.step,
            count=self.config.evaluation.pictures,
        )

    def rest_of_epoch(self, stop: StopRequest) -> Iterator[StepResult]:
        """Train to the epoch's or the run's end; agree on every step, note it, then yield."""
        epoch, _ = self.plan.position(self.step)
        training = self.config.training
        rate = partial(
            learning_rate_factor,
            warmup_steps=round(training.warmup_epochs * self.plan.steps_per_epoch),
            warmup_factor=training.warmup_factor,
            total_steps=self.plan.total_steps,
            schedule=training.schedule,
        )
        title = f"epoch {epoch + 1}/{training.epochs}, steps"
        total = self.plan.total_steps
        last = min(total, (epoch + 1) * self.plan.steps_per_epoch)
        with progress(self.console, title, total=total, start=self.step) as advance:
            while self.step < last:
                self.loading.batches.set_position(*self.plan.position(self.step))
                for own in train_one_epoch(
                    self.prepared,
                    agreed_batches(self.group, self.loading.train),
                    learning_rate=lambda step: training.learning_rate * rate(step),
                    first_step=self.step,
                    gradient_accumulation=training.gradient_accumulation,
                    focal_form=self.config.engine.focal_loss,
                    exchange=self.exchange,
                    phases=self.phases,
                ):
                    result = self.agree(own, stop)
                    self.step = result.step
                    self.map_here = None
                    advance(self.step, self.record.step(result))
                    self.note_bad_images(result.bad_images)
                    yield result
                    if self.step >= last or self.loading_moved_out(own):
                        break

    def agree(self, own: StepResult, stop: StopRequest) -> StepResult:
        """The step of all ranks; all learn of a signal that one has got."""
        results, received = zip(*self.group.all_gather((own, stop.received)), strict=True)
        stop.agree(received)
        return merged(results)

    def loading_moved_out(self, result: StepResult) -> bool:
        """Whether the epoch must go on from a loading process, as its steps have shown."""
        reason = self.loading.move_out_if_needed(result)
        if reason:
            self.console.print(reason)
        return reason is not None

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
        return resuming_command(starting_words(self.place.ranks))

    def say(self, text: str) -> None:
        """A line for the person who started the run; rank 0 says it."""
        if self.group.is_first:
            print(text, flush=True)

    def save_checkpoint(self) -> None:
        """Write the weights and all that resuming needs; `best` follows the highest mAP.

        Rank 0 writes, and all ranks call it.
        """
        if self.map_here is None:  # else they are as they were evaluated
            average_norms(self.group, self.model)
        is_best = self.map_here is not None and (
            self.best_map is None or self.map_here > self.best_map
        )
        if is_best:
            self.best_map = self.map_here
        if not self.group.is_first:
            return
        folder = save_checkpoint(
            self.folder.checkpoints,
            model=self.model,
            optimizer=self.optimizer,
            description=self.description,
            position=self.position(),
            config=config_to_tree(self.config),
        )
        if is_best:
            point_to(self.folder.checkpoints / "best", folder)
        remove_others(self.folder.checkpoints)

    def position(self) -> TrainingPosition:
        """How far the run has come, as a checkpoint keeps it."""
        return TrainingPosition(
            step=self.step,
            steps_per_epoch=self.plan.steps_per_epoch,
            map_here=self.map_here,
            best_map=self.best_map,
        )

    def finish(self) -> None:
        """Say how the run ended, where its work lies, and what to try next."""
        self.record.closing(
            is_reached=self.target_is_reached(),
            step=self.step,
            best_map=self.best_map,
            bad_images=len(self.loading.bad_images.seen),
            example=self.data.validation.image_folder
            / self.data.validation.annotations.file_names[0],
        )
