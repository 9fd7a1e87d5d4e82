"""What a run has where its ranks train in compute groups that do not wait for one another."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch import nn

from launch.group.parts import pair_with_first
from launch.group.process_group import ProcessGroup
from launch.pinning.compute_threads import calling_thread_on, compute_alone
from retinanet.compute_groups import group_of_rank, ranks_of_groups
from retinanet.config import Config
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.group_weights import GroupWeights, memory_of_weights
from retinanet.engine.served_weights import ServedWeights, WeightsServer
from retinanet.engine.shared_memory import MemoryPlace
from retinanet.training.groups.group_update import GroupUpdate
from retinanet.training.start import build_optimizer


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
