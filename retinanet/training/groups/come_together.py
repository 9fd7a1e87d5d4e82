"""All groups that are left, together again after a stretch: one set of weights, one position."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinanet.errors import InputError, NonFiniteLossError
from retinanet.training.groups.compute_groups import ComputeGroups, trained_parameters
from retinanet.training.signals import StopRequest

if TYPE_CHECKING:
    from retinanet.training.run import Run

SECONDS_BETWEEN_LOOKS = 0.01


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


def come_together(
    run: "Run", groups: ComputeGroups, arrival: Callable[[], Arrival], stop: StopRequest
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


def ranks_left(run: "Run", groups: ComputeGroups) -> tuple[int, ...]:
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
