"""What a run has where its ranks train in compute groups that do not wait for one another.

TODO-DOC The optimizer's step of a compute group: on the common weights, which all its ranks then have.

TODO-DOC The steps of compute groups on their way to rank 0, which records them all.

TODO-DOC Parts of a job's ranks: compute groups, and those that are left when a group has ended.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from launch.compute_threads import calling_thread_on, compute_alone
from launch.process_group import ProcessGroup, stdout_to_nowhere
from retinanet.config import Config
from retinanet.config_types import group_of_rank, ranks_of_groups
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.shared_gradients import MemoryPlace
from retinanet.training.async_groups.weights import (
    GroupWeights,
    ServedWeights,
    WeightsServer,
    memory_of_weights,
)
from retinanet.training.build import build_optimizer
from retinanet.training.loop import StepResult


class GroupUpdate:
    """Called by every rank of a group, when their average gradients are there."""

    def __init__(
        self,
        weights: GroupWeights | ServedWeights | None,
        parameters: Sequence[nn.Parameter],
        *,
        group: ProcessGroup,
        is_in_memory: bool,
        server: WeightsServer | None = None,
    ) -> None:
        """Take steps on these weights.

        Args:
            weights: As this rank sees them; None where the group's first rank tells them.
            parameters: This rank's own that train.
            group: Its compute group.
            is_in_memory: Whether all ranks of the job have the weights in their memory.
            server: On rank 0, where they have not.
        """
        self._weights = weights
        self._parameters = parameters
        self._group = group
        self._is_in_memory = is_in_memory
        self._server = server

    @property
    def way(self) -> str:
        """`shared memory` or `gloo`."""
        return "shared memory" if self._is_in_memory else "gloo"

    def begin(self) -> None:
        """Read the weights as they are now; every rank of the group calls it."""
        self._update(learning_rate=None)

    def __call__(self, learning_rate: float) -> int:
        """Take a step with the gradients, let go of them, and read the weights.

        Returns:
            Its staleness, see `GroupWeights.step`; on the group's first rank.

        Raises:
            TimeoutError: Another group keeps the weights for too long.
        """
        staleness = self._update(learning_rate=learning_rate)
        for one in self._parameters:
            one.grad = None
        return staleness

    def _update(self, *, learning_rate: float | None) -> int:
        """Take a step if there is a learning rate, and read the weights that all then have."""
        staleness = 0
        if self._group.is_first:
            staleness = self._update_as_first(learning_rate)
        elif self._is_in_memory:
            self._read_with_first()
        if not self._is_in_memory:
            self._group.broadcast(one.detach() for one in self._parameters)
        return staleness

    def _update_as_first(self, learning_rate: float | None) -> int:
        assert self._weights is not None
        staleness = 0
        with self._weights.held():
            if learning_rate is not None:
                gradients = [one.grad for one in self._parameters if one.grad is not None]
                staleness = self._weights.step(gradients, learning_rate=learning_rate)
            self._weights.copy_to(self._parameters)
            if self._is_in_memory:
                self._group.barrier()  # the others begin to read
                self._group.barrier()  # and are done
        return staleness

    def _read_with_first(self) -> None:
        """Without holding them: the first does, and it waits for this."""
        assert self._weights is not None
        self._group.barrier()
        self._weights.copy_to(self._parameters)
        self._group.barrier()

    def take_back(self, optimizer: Optimizer) -> None:
        """On rank 0, while nobody trains: put weights and the optimizer's state into its own."""
        assert isinstance(self._weights, GroupWeights)
        self._weights.take_back(self._parameters, optimizer)

    def close(self, *, timeout_s: float) -> None:
        """Part from the weights; every rank that is left calls it once."""
        if isinstance(self._weights, ServedWeights):
            self._weights.close()
        if self._server is not None:
            self._server.close(timeout_s=timeout_s)


@dataclass(kw_only=True)
class ComputeGroups:
    """This rank among them."""

    everybody: ProcessGroup
    """All ranks that the job began with."""
    own: ProcessGroup
    """Those of this rank's group, which average their gradients."""
    number: int
    """Of this rank's group, from 0."""
    count: int
    """How many groups the job began with."""
    update: GroupUpdate
    regroup: Callable[[tuple[int, ...]], ProcessGroup]
    """The group of so many ranks of the job, which are left; only these call it."""
    stretch: int = 0
    """Times until now that all have begun to train without waiting; see `BatchQueue`."""
    own_steps: int = 0
    """Steps of this rank's group in this process."""

    @property
    def store(self) -> dist.Store:
        """Where all ranks count batches and leave word."""
        assert self.everybody.store is not None
        return self.everybody.store

    def ranks_at_work(self) -> list[int]:
        """Those of the job's ranks that have not ended, as far as this rank knows."""
        lost = self.everybody.watch.lost if self.everybody.watch else set()
        return [rank for rank in range(self.everybody.size) if rank not in lost]

    def group_of(self, rank: int) -> int:
        """The number of the group of a rank of the job."""
        return group_of_rank(rank, ranks=self.everybody.size, groups=self.count)


def make_compute_groups(
    config: Config,
    prepared: PreparedTraining,
    *,
    everybody: ProcessGroup,
    own: ProcessGroup,
    regroup: Callable[[tuple[int, ...]], ProcessGroup],
    comm_cpus: tuple[int, ...],
) -> ComputeGroups | None:
    """Put rank 0's weights and optimizer state where all groups update them; all ranks call it.

    On one host that is memory which all ranks see; on several, rank 0 serves the other groups.

    Returns:
        None where there is one group.
    """
    count = config.distributed.groups
    if count == 1:
        return None
    update = common_weights(config, prepared, everybody=everybody, own=own, comm_cpus=comm_cpus)
    return ComputeGroups(
        everybody=everybody,
        own=own,
        number=group_of_rank(everybody.rank, ranks=everybody.size, groups=count),
        count=count,
        update=update,
        regroup=regroup,
    )


def common_weights(
    config: Config,
    prepared: PreparedTraining,
    *,
    everybody: ProcessGroup,
    own: ProcessGroup,
    comm_cpus: tuple[int, ...],
) -> GroupUpdate:
    """This rank's way to them."""
    parameters = trained_parameters(prepared.model)
    name = config.training.optimizer
    memory = memory_of_weights(parameters, optimizer=name) if everybody.is_first else None
    view = partial(view_of_weights, config, parameters)
    place = everybody.from_first(lambda: memory.place if memory else None)
    assert place is not None
    weights = None
    if everybody.is_on_one_host or everybody.is_first:
        with suppress(OSError):  # rank 0 is in another container
            weights = view(place)
    if everybody.is_first:
        assert weights is not None
        weights.fill(parameters, prepared.optimizer)
    everybody.barrier()
    is_in_memory = all(everybody.all_gather(weights is not None))
    if is_in_memory:
        update = GroupUpdate(weights, parameters, group=own, is_in_memory=True)
    else:
        update = served_weights(
            config,
            parameters,
            own_view=weights if everybody.is_first else None,
            make_view=lambda: view(place),
            everybody=everybody,
            own=own,
            comm_cpus=comm_cpus,
        )
    if memory is not None:
        memory.close()
    return update


def view_of_weights(
    config: Config, parameters: Sequence[nn.Parameter], place: MemoryPlace
) -> GroupWeights:
    """The weights as one thread or rank sees them.

    Raises:
        OSError: It does not see rank 0's memory.
    """
    make = partial(
        build_optimizer, config.training, engine="torch", groups=config.distributed.groups
    )
    return GroupWeights(
        place,
        parameters,
        optimizer=config.training.optimizer,
        make=make,
        timeout_s=config.distributed.timeout_s,
    )


def served_weights(
    config: Config,
    parameters: Sequence[nn.Parameter],
    *,
    own_view: GroupWeights | None,
    make_view: Callable[[], GroupWeights],
    everybody: ProcessGroup,
    own: ProcessGroup,
    comm_cpus: tuple[int, ...],
) -> GroupUpdate:
    """The way where rank 0 serves the other groups' first ranks."""
    compress = config.distributed.compress == "bf16"
    parts = ranks_of_groups(everybody.size, config.distributed.groups)
    pairs = [(part[0], pair_with_first(part[0], comm_cpus=comm_cpus)) for part in parts[1:]]
    server = None
    weights: GroupWeights | ServedWeights | None = own_view
    if everybody.is_first:
        with calling_thread_on(comm_cpus):
            server = WeightsServer(
                pairs,
                parameters,
                make_view=make_view,
                compress=compress,
                begin_thread=compute_alone,
            )
    elif own.is_first:
        weights = ServedWeights(dict(pairs)[everybody.rank], parameters, compress=compress)
    return GroupUpdate(weights, parameters, group=own, is_in_memory=False, server=server)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those that train, in the optimizer's order."""
    return [one for one in model.parameters() if one.requires_grad]


class GroupResults:
    """Left by the first rank of each group, taken by rank 0, through the store of the job."""

    def __init__(self, groups: ComputeGroups) -> None:
        """Those of the stretch that begins."""
        self._store = groups.store
        self._name = f"stretch {groups.stretch}/results of group"
        self._own = groups.number
        self._left = 0
        self._taken = dict.fromkeys(set(range(groups.count)) - {groups.number}, 0)

    def leave(self, result: StepResult) -> None:
        """Leave one of this group's."""
        content = pickle.dumps(result)
        self._store.set(self._key(self._own, self._left), content)  # type: ignore[arg-type]
        self._left += 1

    def take(self) -> Iterator[StepResult]:
        """Those of the other groups that nobody has taken yet."""
        for group in self._taken:
            while self._store.check([key := self._key(group, self._taken[group])]):
                yield pickle.loads(self._store.get(key))  # noqa: S301
                self._store.delete_key(key)
                self._taken[group] += 1

    def _key(self, group: int, index: int) -> str:
        return f"{self._name} {group}/{index}"


LONGEST_WAIT = timedelta(days=365)


def compute_group(
    everybody: ProcessGroup, groups: int, *, comm_cpus: tuple[int, ...], timeout_s: float
) -> ProcessGroup:
    """This rank's compute group, whose ranks average their gradients; all ranks call it.

    Args:
        everybody: All ranks of the job.
        groups: How many groups there are; it divides the ranks.
        comm_cpus: Where threads run that exchange.
        timeout_s: A rank that is silent for longer breaks the group.
    """
    if groups == 1:
        return everybody
    parts = ranks_of_groups(everybody.size, groups)
    own = group_of_rank(everybody.rank, ranks=everybody.size, groups=groups)
    made = [
        torch_groups(everybody, part, comm_cpus=comm_cpus, timeout_s=timeout_s) for part in parts
    ]
    return part_of(everybody, parts[own], *made[own])


def living_group(
    everybody: ProcessGroup,
    job_ranks: Sequence[int],
    *,
    comm_cpus: tuple[int, ...],
    timeout_s: float,
) -> ProcessGroup:
    """The ranks of a job that are left; these, rank 0 among them, call it, and no others.

    Args:
        everybody: All ranks of the job.
        job_ranks: Those that are left.
        comm_cpus: See `compute_group`.
        timeout_s: See `compute_group`.
    """
    assert everybody.watch is not None
    everybody.watch.lost |= set(range(everybody.size)) - set(job_ranks)
    made = torch_groups(
        everybody, tuple(job_ranks), comm_cpus=comm_cpus, timeout_s=timeout_s, only_they_call=True
    )
    return part_of(everybody, tuple(job_ranks), *made)


def pair_with_first(job_rank: int, *, comm_cpus: tuple[int, ...]) -> dist.ProcessGroup:
    """torch's group of rank 0 and another, for messages for which either may wait as it likes."""
    with calling_thread_on(comm_cpus), stdout_to_nowhere():
        return dist.new_group([0, job_rank], backend="gloo", timeout=LONGEST_WAIT)


def torch_groups(
    everybody: ProcessGroup,
    job_ranks: tuple[int, ...],
    *,
    comm_cpus: tuple[int, ...],
    timeout_s: float,
    only_they_call: bool = False,
) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """torch's groups of some ranks: for gradients, and for everything else."""
    settings: dict[str, Any] = {
        "timeout": timedelta(seconds=timeout_s),
        "use_local_synchronization": only_they_call,
    }
    with calling_thread_on(comm_cpus), stdout_to_nowhere():
        control = dist.new_group(list(job_ranks), backend="gloo", **settings)
        if everybody.backend == "gloo":
            return control, control
        return dist.new_group(list(job_ranks), backend=everybody.backend, **settings), control


def part_of(
    everybody: ProcessGroup,
    job_ranks: tuple[int, ...],
    exchange: dist.ProcessGroup,
    control: dist.ProcessGroup,
) -> ProcessGroup:
    """Some ranks of a job, this one among them, as a group of their own."""
    hosts = tuple(everybody.hosts[rank] for rank in job_ranks)
    return replace(
        everybody,
        rank=job_ranks.index(everybody.rank),
        size=len(job_ranks),
        hosts=hosts,
        is_on_one_host=everybody.is_on_one_host or len(set(hosts)) == 1,
        exchange=exchange,
        control=control,
        job_ranks=job_ranks,
    )
