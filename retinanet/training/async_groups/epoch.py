"""An epoch in compute groups: asynchronous stretches, and synchronization of all ranks in between.

A stretch lasts from one synchronization to the next: to the epoch's end, or until a rank closes the
queue of batches, for example because a checkpoint is due. All batches before the queue's end have
then been taken, and none after it. At a synchronization all ranks get the shared weights.
"""

import itertools
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import torch.distributed as dist

from common.errors import InputError, NonFiniteLossError
from retinanet.config_sections import TrainingConfig
from retinanet.config_types import planned_groups, resolve_beta1
from retinanet.training.agreement import agreed_batches, merge_results
from retinanet.training.async_groups.groups import (
    ComputeGroups,
    GroupResults,
    living_group,
    make_compute_groups,
    trained_parameters,
)
from retinanet.training.components import RunComponents
from retinanet.training.epoch import EpochStep
from retinanet.training.loop import StepResult
from retinanet.training.nonfinite import NonFiniteReport
from retinanet.training.signals import StopRequest

POLL_SECONDS = 0.01


class GroupEpochs:
    """Compute groups; steps are those of single groups. On rank 0 the run gets the shared state.

    The interface is that of `SynchronousEpochs`.
    """

    def __init__(self, run: RunComponents) -> None:
        self._run = run
        self._groups = make_compute_groups(
            run.config, run.prepared, all_ranks=run.group, averaging=run.averaging
        )
        self.rows = {"groups": describe_groups(self._groups, run.config.training)}

    def train_epoch(self, step: int, *, last: int, stop: StopRequest) -> Iterator[EpochStep]:
        """See `SynchronousEpochs`. Yields the steps of this rank's group, on rank 0 of all groups.

        A problem in any group ends the stretch, and is raised at the synchronization after it. A
        step that is not finite does not change the shared weights.
        """
        while step < last:
            stretch = Stretch(self._run, self._groups, start=step, steps=last - step, stop=stop)
            yield from stretch.steps()
            step = yield from self._synchronize(stretch, step, stop)

    def _synchronize(
        self, stretch: "Stretch", step: int, stop: StopRequest
    ) -> Generator[EpochStep, None, int]:
        """Wait for all remaining ranks, and agree on the position of the run; all call it.

        Afterwards they have the latest shared weights, and rank 0 has the optimizer's state. The
        generator returns the completed steps of the run.
        """
        run, groups = self._run, self._groups
        remaining = self._remaining_ranks()
        if len(remaining) < run.group.size:
            run.continue_with(living_group(groups.all_ranks, remaining, timeout_s=groups.timeout_s))
        if run.group.is_first:
            # A checkpoint is written from rank 0's model and optimizer.
            groups.optimizer.take_back(run.prepared.optimizer)
        parameters = trained_parameters(run.prepared.model)
        run.group.broadcast(parameter.detach() for parameter in parameters)
        # These include steps of groups that have ended since.
        if run.group.is_first:
            yield from stretch.steps_of_others()
        arrivals = run.group.all_gather(stretch.arrival(), Arrival)
        stop.agree([arrival.signal for arrival in arrivals])
        untrained = [rank.untrained for rank in arrivals if rank.untrained is not None]
        # The run continues before the first step that was taken but not trained. That step and
        # later ones are repeated after a resume.
        done = step + min([max(arrival.taken for arrival in arrivals), *untrained])
        yield EpochStep(
            step=done,
            checkpoint_is_due=any(arrival.checkpoint_is_due for arrival in arrivals),
            metric_is_ready=any(arrival.metric_is_ready for arrival in arrivals),
            problem=next((rank.error() for rank in arrivals if rank.problem), None),
        )
        return done

    def _remaining_ranks(self) -> tuple[int, ...]:
        """Return the job's ranks whose groups have not ended.

        From now on, until the next stretch, the end of any rank ends the whole job.
        """
        all_ranks, sealed = self._groups.all_ranks, self._groups.sealed
        watch = all_ranks.watch
        assert watch is not None
        name = f"stretch {self._groups.stretch}"
        sealed.store.set(f"{name}/arrived/{all_ranks.rank}", "")
        key = f"{name}/remaining"
        # Rank 0 decides for all: a rank that ends right now would be counted by some and not by
        # others, and the collectives that follow would hang.
        if not all_ranks.is_first:
            named: tuple[int, ...] = sealed.get(key, tuple[int, ...])
            return named
        members = self._run.group.job_ranks or tuple(range(all_ranks.size))
        waiting = set(members)
        # Polled: a barrier of gloo would wait for lost ranks, too.
        while waiting := {
            rank
            for rank in waiting
            if rank not in watch.lost and not sealed.store.check([f"{name}/arrived/{rank}"])
        }:
            time.sleep(POLL_SECONDS)
        watch.outlive(())
        remaining = tuple(rank for rank in members if rank not in watch.lost)
        sealed.set(key, remaining)
        return remaining


def describe_groups(groups: ComputeGroups, settings: TrainingConfig) -> str:
    """Return the number of groups, their momentum, and the place of the weights."""
    count = groups.count
    text = planned_groups(count, ranks=count * groups.averaging.size)
    implicit = f"1 − 1/{count}"
    if settings.optimizer == "sgd":
        momentum = f"momentum {settings.momentum:g}, plus {implicit} from asynchronous updates"
    else:
        reason = f"since {implicit} of momentum comes from asynchronous updates"
        reason = reason if settings.beta1 == "auto" else "as configured"
        momentum = f"beta1 {resolve_beta1(settings.beta1, groups=count):g}, {reason}"
    return f"{text}; {momentum}; weights by {groups.optimizer.way}"


@dataclass(kw_only=True)
class Arrival:
    """A rank's contribution to the synchronization after a stretch."""

    taken: int = 0  # One more than the number of its last step, counted from 0 in the stretch
    untrained: int | None = None
    """The first step that it was given but did not train, because of a problem."""
    problem: str = ""
    is_nonfinite: bool = False  # Whether the problem is a NonFiniteLossError
    signal: str = ""
    checkpoint_is_due: bool = False
    metric_is_ready: bool = False

    def fail(self, error: InputError | NonFiniteLossError) -> None:
        """Keep an error, which all ranks raise at the synchronization."""
        self.problem, self.is_nonfinite = str(error), isinstance(error, NonFiniteLossError)

    def error(self) -> InputError | NonFiniteLossError:
        """Return the error that was kept."""
        kind = NonFiniteLossError if self.is_nonfinite else InputError
        return kind(self.problem)


class Stretch:
    """This rank's part in one stretch."""

    def __init__(
        self,
        run: RunComponents,
        groups: ComputeGroups,
        *,
        start: int,
        steps: int,
        stop: StopRequest,
    ) -> None:
        """Begin after `start` steps of the run; all ranks call it.

        It has at most `steps` of all groups together, and a signal ends it sooner.
        """
        groups.stretch += 1
        self._run, self._groups, self._stop = run, groups, stop
        self._start = start
        self._trained = 0
        """Steps of this group."""
        self._logged = 0
        """Steps of all groups, on rank 0."""
        self._last_logged = 0
        self._arrival = Arrival()
        self.queue = BatchQueue(
            groups.sealed.store,
            stretch=groups.stretch,
            steps=steps,
            group=groups.number,
            group_size=groups.averaging.size,
        )
        self._results = GroupResults(groups)
        groups.optimizer.begin()
        watch = groups.all_ranks.watch
        if watch is not None and groups.all_ranks.is_first:
            watch.outlive([groups.group_index(rank) for rank in range(groups.all_ranks.size)])

    def steps(self) -> Iterator[EpochStep]:
        """Train on the steps that this group takes from the queue, until it ends."""
        run, groups = self._run, self._groups
        try:
            while self.queue.take(self._trained) is not None:
                for rank_result in self._steps_of_group():
                    result = self._agree(rank_result)
                    report = self._checked(result)
                    self._trained += 1
                    groups.own_steps += 1
                    # All ranks of a group have the same merged result, so its first rank sends it.
                    # Rank 0 logs the results of its own group directly.
                    if groups.averaging.is_first and not groups.all_ranks.is_first:
                        self._results.send(result)
                    yield self._logged_step(result, report)
                    if groups.all_ranks.is_first:
                        yield from self.steps_of_others()
                    if run.has_moved_loading(rank_result):
                        break
        except (InputError, NonFiniteLossError) as problem:
            taken = self.queue.taken
            untrained = taken[self._trained] if self._trained < len(taken) else None
            self._arrival.fail(problem)
            self._arrival.untrained = untrained
            self.queue.close()

    def _steps_of_group(self) -> Iterator[StepResult]:
        """Take steps from the first untrained one, until loading moves or the queue ends."""
        run, groups = self._run, self._groups
        batches, first = run.loading.batches, groups.own_steps - self._trained
        batches.set_position(*run.plan.position(self._start))
        batches.chosen = queued_batches(
            self.queue,
            first=self._trained,
            batches_a_step=run.config.training.gradient_accumulation,
        )
        return run.take_steps(
            agreed_batches(groups.averaging, run.loading.train),
            # These steps are counted within the group. The learning rate depends on a step's number
            # among all groups.
            first_step=groups.own_steps,
            rate_of=lambda step: run.learning_rate(self._start + self.queue.taken[step - first]),
            optimizer=groups.optimizer,
        )

    def _agree(self, rank_result: StepResult) -> StepResult:
        """Return the step of all ranks of this group, by its number in the run.

        Closes the queue if something is due that needs all ranks.
        """
        run, groups = self._run, self._groups
        number = self._start + self.queue.taken[self._trained] + 1
        staleness = 0 if rank_result.nonfinite else groups.optimizer.staleness
        result = merge_results(groups.averaging.all_gather(run.with_load(rank_result), StepResult))
        is_due, is_ready = run.checkpoint_is_due(number), run.metric_is_ready
        self._arrival.checkpoint_is_due |= is_due
        self._arrival.metric_is_ready |= is_ready
        if is_due or is_ready or self._stop.received:
            self.queue.close()
        facts = {"group": groups.number, "staleness": staleness}
        return replace(result, step=number, facts=facts)

    def _checked(self, result: StepResult) -> NonFiniteReport | None:
        """Return a report if a step was skipped; raise if the run cannot continue.

        The other groups have continued: no rank has the state before this step.
        """
        report = self._run.check_finite(result)
        if report is not None and report.advice is not None:
            raise NonFiniteLossError(f"{report.line}; {report.advice}")
        return report

    def steps_of_others(self) -> Iterator[EpochStep]:
        """Yield the steps of other groups that have arrived at rank 0."""
        for result in self._results.take():
            report = self._run.check_finite(result, is_decided=True) if result.nonfinite else None
            yield self._logged_step(result, report)

    def _logged_step(self, result: StepResult, report: NonFiniteReport | None) -> EpochStep:
        """Return a step for the log.

        Too many unreadable images end the run at the synchronization. Rank 0 alone counts those of
        all groups, so its group trains what it has taken: its other ranks would wait for it.
        """
        groups = self._groups
        bad_images, problem = self._run.new_bad_images(result)
        if problem is not None:
            self._arrival.fail(problem)
            self.queue.close()
        at_work = len({groups.group_index(rank) for rank in groups.ranks_at_work()})
        self._logged += 1
        self._last_logged = max(self._last_logged, result.step - self._start)
        return EpochStep(
            result=replace(result, parallel=at_work),
            nonfinite=report,
            bad_images=bad_images,
            done=self._start + self._logged,
        )

    def arrival(self) -> Arrival:
        """Return this rank's contribution to the synchronization."""
        taken = self.queue.taken[-1] + 1 if self.queue.taken else 0
        # Steps of a group that has ended are known only from its results, which rank 0 has logged.
        self._arrival.taken = max(taken, self._last_logged)
        self._arrival.signal = self._stop.received
        return self._arrival


CLOSED = 10**12  # Added to the count by `close`; above any number of batches


class BatchQueue:
    """The steps of a stretch, taken by groups; all ranks of a group see the same ones in order."""

    def __init__(
        self, store: dist.Store, *, stretch: int, steps: int, group: int, group_size: int
    ) -> None:
        """Open the queue; every rank calls it.

        The `store` is shared by all ranks of the job. `stretch` is the number of the stretch, which
        has at most `steps`; one group takes each. This rank is in a `group` of `group_size` ranks.
        """
        self._store = store
        self._name = f"stretch {stretch}"
        self._steps = steps
        self._group = group
        self._group_size = group_size
        self.taken: list[int] = []
        """Numbers in the stretch, from 0, of the steps given to this rank so far."""
        self.is_over = False
        """Whether there are no more steps."""

    def take(self, index: int) -> int | None:
        """Return the number of the group's `index`-th step; None if there is none.

        Any rank of the group may call it first, since ranks load ahead.
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
        # The first rank to ask takes a number for the group; `get` blocks until it is there.
        if self._store.add(f"{key}/requests", 1) == 1:
            self._store.set(key, str(self._count()))
        number = int(self._store.get(key))
        # The last one to read removes the keys, or the store would grow with every step.
        if self._store.add(f"{key}/read", 1) == self._group_size:
            for name in (key, f"{key}/requests", f"{key}/read"):
                self._store.delete_key(name)
        return number

    def _count(self) -> int:
        return int(self._store.add(f"{self._name}/next", 1)) - 1

    def close(self) -> None:
        """End the queue for all groups; any rank may call this, any number of times."""
        # One atomic addition, where a flag would leave a gap between reading it and counting.
        self._store.add(f"{self._name}/next", CLOSED)


def queued_batches(queue: BatchQueue, *, first: int, batches_a_step: int) -> Iterator[int]:
    """Yield the numbers in the stretch of a group's batches, taken from the queue as needed.

    `first` is the index of the first of the group's steps to yield.
    """
    for index in itertools.count(first):
        step = queue.take(index)
        if step is None:
            return
        yield from range(step * batches_a_step, (step + 1) * batches_a_step)
