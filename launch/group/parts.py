"""Parts of a job's ranks: compute groups, and those that are left when a group has ended."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from launch.group.process_group import ProcessGroup, stdout_to_nowhere
from launch.pinning.compute_threads import calling_thread_on
from retinanet.compute_groups import group_of_rank, ranks_of_groups

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
