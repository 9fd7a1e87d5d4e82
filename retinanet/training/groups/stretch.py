"""An epoch in compute groups: stretches without waiting, and what is settled in between."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from retinanet.errors import InputError, NonFiniteLossError
from retinanet.progress import progress
from retinanet.training.agreement import agreed_batches, merged
from retinanet.training.groups.batch_queue import BatchQueue, batches_of
from retinanet.training.groups.come_together import Arrival, come_together
from retinanet.training.groups.compute_groups import ComputeGroups
from retinanet.training.groups.results import GroupResults
from retinanet.training.loop import StepResult, train_one_epoch
from retinanet.training.nonfinite_run import note_gradients, tell_of_skipped
from retinanet.training.run_checkpoints import begin_checkpoint, leave_checkpoint
from retinanet.training.signals import StopRequest

if TYPE_CHECKING:
    from retinanet.training.run import Run

Rate = Callable[[int], float]
"""From steps of the run to the next one's learning rate."""


def rest_of_epoch_in_groups(
    run: "Run", groups: ComputeGroups, stop: StopRequest, *, rate: Rate
) -> Iterator[StepResult]:
    """Train to the epoch's or the run's end; `run.step` advances when all have come together.

    Steps are those of single groups. Yields this rank's group's.

    Raises:
        InputError: An image cannot be read, or too many could not, by any group.
        NonFiniteLossError: The run cannot go on after a step of any group; a checkpoint has the
            weights, which that step did not touch.
    """
    epoch = run.plan.position(run.step).epoch
    title = f"epoch {epoch + 1}/{run.config.training.epochs}, steps"
    last = run.plan.end_of_epoch(run.step)
    with progress(run.console, title, total=run.plan.total_steps, start=run.step) as advance:
        while run.step < last and not stop and not run.target_is_reached():
            stretch = Stretch(run, groups, steps=last - run.step, stop=stop, advance=advance)
            yield from stretch.steps(rate)
            together = come_together(run, groups, stretch.arrival, stop)
            if run.step >= last:
                run.log.epoch_stopped(epoch + 1, step=run.step)
            settle_stretch(run, together, stop)


def settle_stretch(run: "Run", together: Arrival, stop: StopRequest) -> None:
    """Do what the ranks have come together for; all ranks call it.

    Raises:
        InputError: See `rest_of_epoch_in_groups`.
        NonFiniteLossError: See there.
    """
    if isinstance(together.problem, InputError):
        raise together.problem
    if together.problem is not None:
        leave_checkpoint(run)
        raise NonFiniteLossError(
            f"{together.problem}; a checkpoint has the weights as they are: go on with: "
            f"{run.resuming_command}"
        )
    if together.metric_is_ready:
        run.settle()
    if together.checkpoint_is_due and not stop and not run.evaluation_is_due():
        begin_checkpoint(run)


class Stretch:
    """This rank's part in one stretch."""

    def __init__(
        self,
        run: "Run",
        groups: ComputeGroups,
        *,
        steps: int,
        stop: StopRequest,
        advance: Callable[[int, str], None],
    ) -> None:
        """Begin it, which all ranks do.

        Args:
            run: The run.
            groups: This rank among them.
            steps: Until its end, of all groups together.
            stop: Where a signal comes, it ends sooner.
            advance: Shows steps, and a text beside them.
        """
        groups.stretch += 1
        self._run, self._groups, self._stop, self._advance = run, groups, stop, advance
        self._start = run.step
        self._recorded = 0
        self._last_recorded = 0
        self._trained = 0
        self._wants = Arrival(taken=0)
        self.queue = BatchQueue(
            groups.store,
            stretch=groups.stretch,
            steps=steps,
            group=groups.number,
            group_size=groups.own.size,
        )
        self._results = GroupResults(groups)
        groups.update.begin()
        watch = groups.everybody.watch
        if watch is not None and groups.everybody.is_first:
            ranks = range(groups.everybody.size)
            watch.outlive([groups.group_of(rank) for rank in ranks])

    def steps(self, rate: Rate) -> Iterator[StepResult]:
        """Train on the steps that this group takes from the queue; note each, then yield it."""
        run = self._run
        try:
            while self.queue.take(self._trained) is not None:
                for own in self._iteration(rate):
                    result = self._heard(own)
                    note_gradients(run, result)
                    run.print_notes(result)
                    self._trained += 1
                    self._groups.own_steps += 1
                    self._note_bad_images(result.bad_images)
                    self._note(result)
                    yield result
                    if run.loading_moved_out(own):
                        break
        except (InputError, NonFiniteLossError) as problem:
            self._end_with(problem)

    def _iteration(self, rate: Rate) -> Iterator[StepResult]:
        """The steps from the first that is not trained, until loading moves or the queue ends."""
        run, groups = self._run, self._groups
        here = run.plan.position(self._start)
        training = run.config.training
        batches, first = run.loading.batches, groups.own_steps - self._trained
        batches.set_position(here.epoch, here.images)
        batches.chosen = batches_of(
            self.queue, first=self._trained, batches_a_step=training.gradient_accumulation
        )
        return train_one_epoch(
            run.prepared,
            agreed_batches(groups.own, run.loading.train),
            learning_rate=lambda own: rate(self._start + self.queue.taken[own - first]),
            first_step=groups.own_steps,
            gradient_accumulation=training.gradient_accumulation,
            longest_gradient=training.clip_gradient_norm,
            focal_form=run.config.engine.focal_loss,
            exchange=run.exchange,
            update=groups.update,
            phases=run.phases,
            main_cpus=run.place.pinned.share.main_cpus,
        )

    def _heard(self, own: StepResult) -> StepResult:
        """The step of all ranks of this group, by its number in the run; ends the queue if due."""
        run, groups = self._run, self._groups
        number = self._start + self.queue.taken[self._trained] + 1
        together = merged(groups.own.all_gather(run.with_load(own)))
        is_due = run.saving.is_due(step=number, epoch=run.plan.epochs_done(number))
        is_ready = run.pending is not None and run.pending.is_ready
        if is_due or is_ready:
            self._wants = replace(
                self._wants,
                checkpoint_is_due=is_due or self._wants.checkpoint_is_due,
                metric_is_ready=is_ready or self._wants.metric_is_ready,
            )
        if is_due or is_ready or self._stop.received:
            self.queue.close()
        return replace(together, step=number, group=groups.number)

    def _note(self, result: StepResult) -> None:
        """Leave a step for rank 0 to record; rank 0 records all that are there."""
        groups = self._groups
        if not groups.everybody.is_first:
            if groups.own.is_first:
                self._results.leave(result)
            return
        self._record(result)
        for other in self._results.take():
            self._record_of_another(other)

    def _record_of_another(self, result: StepResult) -> None:
        """Record another group's step on rank 0, and print what is wrong with it."""
        if result.nonfinite:
            self._run.nonfinite.skipped += 1
            tell_of_skipped(self._run, result)
        self._run.print_notes(result)
        self._note_bad_images(result.bad_images)
        self._record(result)

    def _note_bad_images(self, problems: tuple[str, ...]) -> None:
        """Tell of them; too many end the run once all have come together.

        Rank 0 alone has heard of all groups': until then its own trains what it has taken, or the
        group's other ranks would wait for it.
        """
        try:
            self._run.note_bad_images(problems)
        except InputError as problem:
            self._wants = replace(self._wants, problem=problem)
            self.queue.close()

    def _record(self, result: StepResult) -> None:
        run, groups = self._run, self._groups
        at_work = len({groups.group_of(rank) for rank in groups.ranks_at_work()})
        result = replace(result, groups_at_work=at_work)
        self._recorded += 1
        self._last_recorded = max(self._last_recorded, result.step - self._start)
        run.log.stepped(images=result.images, seconds=result.seconds / result.groups_at_work)
        text = run.record.step(result, epoch=run.plan.epochs_done(result.step))
        self._advance(self._start + self._recorded, text)

    def _end_with(self, problem: InputError | NonFiniteLossError) -> None:
        """Something of this group's ends the run, once all have come together."""
        untrained = (
            self.queue.taken[self._trained] if self._trained < len(self.queue.taken) else None
        )
        self._wants = replace(self._wants, problem=problem, untrained=untrained)
        self.queue.close()

    def arrival(self) -> Arrival:
        """What this rank brings to the others, once all are there that are left."""
        if self._groups.everybody.is_first:  # what groups have done that are not there, too
            for other in self._results.take():
                self._record_of_another(other)
        taken = self.queue.taken[-1] + 1 if self.queue.taken else 0
        return replace(
            self._wants, taken=max(taken, self._last_recorded), signal=self._stop.received
        )
