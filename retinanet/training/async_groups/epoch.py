"""An epoch in compute groups: stretches without waiting, and what is settled in between.

TODO-DOC All groups that are left, together again after a stretch: one set of weights, one position.

TODO-DOC The batches of a stretch of training, which compute groups take from one queue.

A stretch lasts from one time at which all groups come together to the next: to the epoch's end, or
until somebody closes the queue since a checkpoint is due, say. All batches before the queue's end
have then been taken, and none after it.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch.distributed as dist

from common.console import progress
from common.errors import InputError, NonFiniteLossError
from retinanet.training.async_groups.groups import ComputeGroups, GroupResults, trained_parameters
from retinanet.training.distributed import agreed_batches, merged
from retinanet.training.loop import StepResult, train_one_epoch
from retinanet.training.run_checkpoints import (
    begin_checkpoint,
    leave_checkpoint,
    note_gradients,
    tell_of_skipped,
)
from retinanet.training.signals import StopRequest

if TYPE_CHECKING:
    from retinanet.training.trainer import Trainer

Rate = Callable[[int], float]
"""From steps of the run to the next one's learning rate."""


def rest_of_epoch_in_groups(
    run: "Trainer", groups: ComputeGroups, stop: StopRequest, *, rate: Rate
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


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """What a rank brings from a stretch."""

    taken: int
    """The number after that of the last step it was given, from 0 in the stretch."""
    untrained: int | None = None
    """The first that it was given and did not train, since something was wrong."""
    problem: InputError | NonFiniteLossError | None = None
    """What was wrong."""
    signal: str = ""
    """That it has received."""
    checkpoint_is_due: bool = False
    metric_is_ready: bool = False


def settle_stretch(run: "Trainer", together: Arrival, stop: StopRequest) -> None:
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
        run: "Trainer",
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


SECONDS_BETWEEN_LOOKS = 0.01


def come_together(
    run: "Trainer", groups: ComputeGroups, arrival: Callable[[], Arrival], stop: StopRequest
) -> Arrival:
    """Wait for all that are left, take up the common weights, and settle where the run stands.

    Every rank calls it at the end of a stretch. Afterwards `run.group` has the ranks that are left,
    all with the weights as the last group has updated them, and rank 0 the optimizer's state.

    Args:
        run: The run.
        groups: This rank among them.
        arrival: What it brings, asked for once all are here that are left.
        stop: Learns of a signal that any rank has got.

    Returns:
        What they bring together; `untrained` and `taken` are in `run.step`.
    """
    living = ranks_left(run, groups)
    if len(living) < run.group.size:
        run.regroup(groups.regroup(living))
    if run.group.is_first:
        groups.update.take_back(run.optimizer)
    run.group.broadcast(one.detach() for one in trained_parameters(run.model))
    arrivals = run.group.all_gather(arrival())
    stop.agree([one.signal for one in arrivals])
    untrained = [one.untrained for one in arrivals if one.untrained is not None]
    steps = min([max(one.taken for one in arrivals), *untrained])
    problems = [one.problem for one in arrivals if one.problem is not None]
    if steps:
        run.step += steps
        run.map_here = None
    return Arrival(
        taken=steps,
        problem=problems[0] if problems else None,
        checkpoint_is_due=any(one.checkpoint_is_due for one in arrivals),
        metric_is_ready=any(one.metric_is_ready for one in arrivals),
    )


def ranks_left(run: "Trainer", groups: ComputeGroups) -> tuple[int, ...]:
    """The job's ranks whose groups have not ended; from now on the end of any is that of all."""
    everybody, store = groups.everybody, groups.store
    name = f"stretch {groups.stretch}"
    store.set(f"{name}/arrived/{everybody.rank}", "")
    key = f"{name}/left"
    watch = everybody.watch
    assert watch is not None
    if not everybody.is_first:
        return tuple(int(rank) for rank in store.get(key).decode().split(","))
    members = run.group.job_ranks or tuple(range(everybody.size))
    waiting = set(members)
    while waiting := {
        rank
        for rank in waiting
        if rank not in watch.lost and not store.check([f"{name}/arrived/{rank}"])
    }:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    watch.outlive(())
    left = tuple(rank for rank in members if rank not in watch.lost)
    store.set(key, ",".join(map(str, left)))
    return left


CLOSED = 10**12
"""More than any number of batches: what is counted beyond it was asked for after the end."""


class BatchQueue:
    """One rank's view; ranks of a group see the same batches in the same order."""

    def __init__(
        self, store: dist.Store, *, stretch: int, steps: int, group: int, group_size: int
    ) -> None:
        """Open, which every rank does.

        Args:
            store: Where all ranks of the job count.
            stretch: Its number in the run.
            steps: Of which it consists at the most; each is one group's.
            group: The number of this rank's group.
            group_size: The group's ranks.
        """
        self._store = store
        self._name = f"stretch {stretch}"
        self._steps = steps
        self._group = group
        self._group_size = group_size
        self.taken: list[int] = []
        """Numbers in the stretch, from 0, of the steps that this rank has been given so far."""
        self.is_over = False
        """Whether it has been told that there are no more."""

    def take(self, index: int) -> int | None:
        """The number of the step that is the group's `index`-th; None where there is none.

        Any rank of the group may ask first, as it reads ahead.
        """
        if index < len(self.taken):
            return self.taken[index]
        assert index == len(self.taken)
        number = None if self.is_over else self._next(index)
        if number is None or number >= self._steps:
            self.is_over = True
            return None
        self.taken.append(number)
        return number

    def _next(self, index: int) -> int:
        if self._group_size == 1:
            return self._count()
        key = f"{self._name}/group {self._group}/{index}"
        asked = self._store.add(f"{key}/asked", 1)
        if asked == 1:
            self._store.set(key, str(self._count()))
        number = int(self._store.get(key))
        if self._store.add(f"{key}/read", 1) == self._group_size:
            for name in (key, f"{key}/asked", f"{key}/read"):
                self._store.delete_key(name)
        return number

    def _count(self) -> int:
        return int(self._store.add(f"{self._name}/next", 1)) - 1

    def close(self) -> None:
        """Let nobody take another batch; any rank may, any number of times."""
        self._store.add(f"{self._name}/next", CLOSED)


def batches_of(queue: BatchQueue, *, first: int, batches_a_step: int) -> Iterator[int]:
    """The numbers in the stretch of the batches of steps that a queue gives, taken as needed.

    Args:
        queue: Where they come from.
        first: Of the group's steps, the first one that is wanted.
        batches_a_step: How many each has.
    """
    for index in itertools.count(first):
        step = queue.take(index)
        if step is None:
            return
        yield from range(step * batches_a_step, (step + 1) * batches_a_step)
