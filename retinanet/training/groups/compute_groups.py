"""What a run has where its ranks train in compute groups that do not wait for one another."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch import nn

from launch.group.process_group import ProcessGroup
from retinanet.compute_groups import group_of_rank
from retinanet.config import Config
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.group_weights import GroupWeights, memory_of_weights
from retinanet.errors import InputError
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
) -> ComputeGroups | None:
    """Put rank 0's weights and optimizer state where all groups update them; all ranks call it.

    Returns:
        None where there is one group.

    Raises:
        InputError: The ranks have no memory in common.
    """
    count = config.distributed.groups
    if count == 1:
        return None
    weights = common_weights(config, prepared, everybody=everybody)
    number = group_of_rank(everybody.rank, ranks=everybody.size, groups=count)
    update = GroupUpdate(weights, trained_parameters(prepared.model), group=own)
    return ComputeGroups(
        everybody=everybody, own=own, number=number, count=count, update=update, regroup=regroup
    )


def common_weights(
    config: Config, prepared: PreparedTraining, *, everybody: ProcessGroup
) -> GroupWeights:
    """The weights in memory that all ranks see.

    Raises:
        InputError: There is none.
    """
    parameters = trained_parameters(prepared.model)
    training, name = config.training, config.training.optimizer
    memory = memory_of_weights(parameters, optimizer=name) if everybody.is_first else None
    place = everybody.from_first(lambda: memory.place if memory else None)
    assert place is not None
    weights, problem = None, ""
    try:
        weights = GroupWeights(
            place,
            parameters,
            optimizer=name,
            make=partial(
                build_optimizer, training, engine="torch", groups=config.distributed.groups
            ),
            timeout_s=config.distributed.timeout_s,
        )
        if everybody.is_first:
            weights.fill(parameters, prepared.optimizer)
    except OSError as error:
        problem = f"rank {everybody.rank} on {everybody.hosts[everybody.rank]}: {error.strerror}"
    problems = [one for one in everybody.all_gather(problem) if one]
    if memory is not None:
        memory.close()
    if weights is None or problems:
        raise InputError(
            f"distributed.groups: {config.distributed.groups}: the ranks see no memory in common "
            f"({problems[0]}); groups need all ranks on one host, or set distributed.groups=1"
        )
    return weights


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those that train, in the optimizer's order."""
    return [one for one in model.parameters() if one.requires_grad]
