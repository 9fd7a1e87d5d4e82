"""Compute groups, which train asynchronously: their ranks, weights and results.

A group's ranks average their gradients; its first rank takes the optimizer's step on the shared
weights, which all of them then read. Steps of all groups go to rank 0, which logs them. If a rank
ends, so does its group, and the others continue as a smaller process group.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from common.console import discard_output
from launch.compute_threads import calling_thread_on, compute_alone
from launch.process_group import ProcessGroup, new_group
from launch.secret import SealedStore
from retinanet.config import Config
from retinanet.config_types import group_of_rank, ranks_of_groups
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.gradient_sync import MemoryPlace
from retinanet.training.async_groups.weights import (
    GroupWeights,
    ServedWeights,
    WeightsServer,
    memory_of_weights,
)
from retinanet.training.build import build_optimizer, count_body
from retinanet.training.loop import StepResult

LONGEST_WAIT = timedelta(days=365)
"""Timeout between rank 0 and the first rank of a group, which may be idle for a long time."""


class GroupOptimizer(Optimizer):
    """The optimizer of a group's ranks, whose step is one on the shared weights; all call it."""

    def __init__(
        self,
        weights: GroupWeights | ServedWeights | None,
        optimizer: Optimizer,
        *,
        group: ProcessGroup,
        is_in_memory: bool,
        server: WeightsServer | None = None,
    ) -> None:
        """Take steps on this rank's view of the weights; None: the group's first rank sends them.

        `optimizer` is that of this rank's parameters, which takes no step itself. `is_in_memory`:
        whether all ranks of the job have the weights in shared memory. If not, rank 0 has the
        `server`.
        """
        super().__init__([{**settings} for settings in optimizer.param_groups], {})
        self._weights = weights
        self._parameters = [value for part in self.param_groups for value in part["params"]]
        self._group = group
        self._is_in_memory = is_in_memory
        self._server = server
        self.staleness = 0
        """Staleness of the last step, see `GroupWeights.step`; on the group's first rank."""

    @property
    def way(self) -> str:
        """`shared memory` or `gloo`."""
        return "shared memory" if self._is_in_memory else "gloo"

    def begin(self) -> None:
        """Read the current weights; every rank of the group calls it."""
        self._update(learning_rate=None)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Take a step with the gradients, and read the weights.

        Raises:
            TimeoutError: Another group holds the weights for too long.
        """
        # Only the body's group, the first of two, may have a rate other than the run's.
        self._update(learning_rate=self.param_groups[-1]["lr"])

    def _update(self, *, learning_rate: float | None) -> None:
        """Take a step if there is a learning rate, and read the resulting weights."""
        weights, group, parameters = self._weights, self._group, self._parameters
        if group.is_first:
            assert weights is not None
            with weights.held():
                if learning_rate is not None:
                    gradients = [value.grad for value in parameters if value.grad is not None]
                    self.staleness = weights.step(gradients, learning_rate=learning_rate)
                weights.copy_to(parameters)
                if self._is_in_memory:
                    # The others read while the first rank holds the lock: no other group can
                    # update between their reads, so that all ranks of the group get equal weights.
                    group.barrier()
                    group.barrier()
        elif self._is_in_memory:
            assert weights is not None
            group.barrier()
            weights.copy_to(parameters)
            group.barrier()
        if not self._is_in_memory:
            group.broadcast(parameter.detach() for parameter in parameters)

    def take_back(self, optimizer: Optimizer) -> None:
        """Copy weights and state to rank 0's optimizer, while no rank trains."""
        assert isinstance(self._weights, GroupWeights)
        self._weights.take_back(self._parameters, optimizer)

    def close(self, *, timeout_s: float) -> None:
        """Release the weights; every remaining rank calls it once."""
        if isinstance(self._weights, ServedWeights):
            self._weights.close()
        if self._server is not None:
            self._server.close(timeout_s=timeout_s)


@dataclass(kw_only=True)
class ComputeGroups:
    """This rank among the compute groups of a job."""

    all_ranks: ProcessGroup  # All ranks at the start of the job
    averaging: ProcessGroup  # The ranks of this rank's group, which average their gradients
    number: int  # This rank's group, counted from 0
    count: int  # Groups at the start of the job
    optimizer: GroupOptimizer
    timeout_s: float  # A rank that is silent for longer breaks a group
    stretch: int = 0
    """Number of the current stretch, counted from 1; see `BatchQueue`."""
    own_steps: int = 0  # Steps of this rank's group in this process

    @property
    def sealed(self) -> SealedStore:
        """The job's store, in which all ranks count batches and leave results."""
        assert self.all_ranks.sealed is not None
        return self.all_ranks.sealed

    def ranks_at_work(self) -> list[int]:
        """Return the job's running ranks, according to this rank's watchdog."""
        lost = self.all_ranks.watch.lost if self.all_ranks.watch else set()
        return [rank for rank in range(self.all_ranks.size) if rank not in lost]

    def group_index(self, rank: int) -> int:
        """Return the number of the group of a rank of the job."""
        return group_of_rank(rank, ranks=self.all_ranks.size, groups=self.count)


def make_compute_groups(
    config: Config,
    prepared: PreparedTraining,
    *,
    all_ranks: ProcessGroup,
    averaging: ProcessGroup,
) -> ComputeGroups:
    """Share rank 0's weights and optimizer state with all groups; all ranks call it.

    On one host they are in shared memory; on several, rank 0 serves the other groups.
    """
    count = config.distributed.groups
    parameters = trained_parameters(prepared.model)
    name, timeout_s = config.training.optimizer, config.distributed.timeout_s
    memory = memory_of_weights(parameters, optimizer=name) if all_ranks.is_first else None
    place = all_ranks.from_first(lambda: memory.place if memory else None, MemoryPlace | None)
    assert place is not None
    make = partial(
        build_optimizer,
        config.training,
        engine="torch",
        groups=count,
        body_parameters=count_body(prepared.model),
    )
    settings: dict[str, Any] = {"optimizer": name, "make": make, "timeout_s": timeout_s}
    make_view = partial(GroupWeights, place, parameters, **settings)
    view = None
    if all_ranks.is_on_one_host or all_ranks.is_first:
        with suppress(OSError):  # rank 0 is in another container
            view = make_view()
    if all_ranks.is_first:
        assert view is not None
        view.fill(parameters, prepared.optimizer)
    all_ranks.barrier()
    server = None
    weights: GroupWeights | ServedWeights | None = view
    is_in_memory = all(all_ranks.all_gather(view is not None, bool))
    if not is_in_memory:
        # Rank 0 serves the first rank of each other group. All ranks must create all pairs, even
        # those that they are not in: `new_group` is a collective operation.
        compress = config.distributed.compress == "bf16"
        with calling_thread_on(all_ranks.comm_cpus):
            with discard_output():
                pairs = {
                    first: new_group([0, first], backend="gloo", timeout=LONGEST_WAIT)
                    for first, *_ in ranks_of_groups(all_ranks.size, count)[1:]
                }
            if all_ranks.is_first:
                server = WeightsServer(
                    pairs, parameters, make_view, compress=compress, begin_thread=compute_alone
                )
        if not all_ranks.is_first:
            weights = None
            if averaging.is_first:
                weights = ServedWeights(pairs[all_ranks.rank], parameters, compress=compress)
    if memory is not None:  # all ranks have mapped it: without its name no file can be left over
        memory.close()
    optimizer = GroupOptimizer(
        weights, prepared.optimizer, group=averaging, is_in_memory=is_in_memory, server=server
    )
    all_ranks.on_leave.append(partial(optimizer.close, timeout_s=timeout_s))
    return ComputeGroups(
        all_ranks=all_ranks,
        averaging=averaging,
        number=group_of_rank(all_ranks.rank, ranks=all_ranks.size, groups=count),
        count=count,
        optimizer=optimizer,
        timeout_s=timeout_s,
    )


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that train, in the optimizer's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class GroupResults:
    """Results of steps, which the first rank of each group sends to rank 0 through the store."""

    def __init__(self, groups: ComputeGroups) -> None:
        """Exchange the results of the current stretch."""
        self._sealed = groups.sealed
        self._name = f"stretch {groups.stretch}/results of group"
        self._number = groups.number
        self._stored = 0
        self._taken = dict.fromkeys(set(range(groups.count)) - {groups.number}, 0)

    def send(self, result: StepResult) -> None:
        """Store the result of a step of this group."""
        self._sealed.set(self._key(self._number, self._stored), result)
        self._stored += 1

    def take(self) -> Iterator[StepResult]:
        """Yield the new results of the other groups."""
        for group in self._taken:
            # `get` blocks until a key exists, so its existence is checked first.
            while self._sealed.store.check([key := self._key(group, self._taken[group])]):
                yield self._sealed.get(key, StepResult)
                self._sealed.store.delete_key(key)
                self._taken[group] += 1

    def _key(self, group: int, index: int) -> str:
        return f"{self._name} {group}/{index}"


def compute_group(all_ranks: ProcessGroup, groups: int, *, timeout_s: float) -> ProcessGroup:
    """Return this rank's compute group, which averages its gradients; all ranks call it.

    Their number divides the ranks. A rank that is silent for longer than `timeout_s` breaks the
    group.
    """
    # Every rank creates every group, since `new_group` is collective over the whole job.
    all_groups = [
        subgroup(all_ranks, job_ranks, timeout_s=timeout_s)
        for job_ranks in ranks_of_groups(all_ranks.size, groups)
    ]
    return all_groups[group_of_rank(all_ranks.rank, ranks=all_ranks.size, groups=groups)]


def living_group(
    all_ranks: ProcessGroup, job_ranks: tuple[int, ...], *, timeout_s: float
) -> ProcessGroup:
    """Return the process group of the remaining ranks; only they call it, rank 0 included."""
    assert all_ranks.watch is not None
    # This rank's watchdog may not have noticed all ranks that rank 0 counts as lost.
    all_ranks.watch.lost |= set(range(all_ranks.size)) - set(job_ranks)
    return subgroup(all_ranks, job_ranks, timeout_s=timeout_s, only_they_call=True)


def subgroup(
    all_ranks: ProcessGroup,
    job_ranks: tuple[int, ...],
    *,
    timeout_s: float,
    only_they_call: bool = False,
) -> ProcessGroup:
    """Return a process group of some ranks of a job; the other ranks cannot use it."""
    ranks = list(job_ranks)
    # By default `new_group` waits for all ranks of the job, including those that have ended.
    settings: dict[str, Any] = {"use_local_synchronization": only_they_call}
    timeout = timedelta(seconds=timeout_s)
    # gloo starts its threads here, and they inherit the CPUs of this one. It also prints lines to
    # stdout from C++.
    with calling_thread_on(all_ranks.comm_cpus), discard_output():
        control = exchange = new_group(ranks, backend="gloo", timeout=timeout, **settings)
        if all_ranks.backend != "gloo":
            exchange = new_group(ranks, backend=all_ranks.backend, timeout=timeout, **settings)
    return replace(
        all_ranks,
        rank=ranks.index(all_ranks.rank) if all_ranks.rank in ranks else -1,
        size=len(job_ranks),
        hosts=tuple(all_ranks.hosts[rank] for rank in job_ranks),
        host_numbers=tuple(all_ranks.host_numbers[rank] for rank in job_ranks),
        exchange=exchange,
        control=control,
        job_ranks=job_ranks,
    )
