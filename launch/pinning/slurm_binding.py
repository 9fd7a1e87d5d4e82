"""What Slurm tells a task of srun about CPUs: its neighbours', and how many the job has."""

from collections.abc import Mapping

from launch.ranks import Ranks, tasks_per_node

CPUS = "SLURM_JOB_CPUS_PER_NODE"


def slurm_affinities(
    environment: Mapping[str, str], ranks: Ranks, *, own: frozenset[int]
) -> list[frozenset[int]] | None:
    """The CPUs that srun bound each task of this host to, in order; None where it does not say.

    The masks are believed where this task's are the CPUs that it really has. A list that is shorter
    than the tasks starts over.

    Args:
        environment: Of this task.
        ranks: This rank.
        own: The CPUs that it was started on.
    """
    if not environment.get("SLURM_CPU_BIND_TYPE", "").startswith("mask_cpu"):
        return None
    try:
        masks = [int(mask, 16) for mask in environment["SLURM_CPU_BIND_LIST"].split(",")]
    except (KeyError, ValueError):
        return None
    bound = [cpus_of(masks[task % len(masks)]) for task in range(ranks.local_size)]
    return bound if bound[ranks.local_rank] == own else None


def cpus_of(mask: int) -> frozenset[int]:
    """The numbers of the bits that are set."""
    return frozenset(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def cpus_of_job(environment: Mapping[str, str]) -> int | None:
    """How many CPUs Slurm gave the job on a host, the least of all hosts; None: it does not say.

    A step may have fewer: srun gives a task one, unless --cpus-per-task asks for more.
    """
    if not environment.get(CPUS):
        return None
    return min(tasks_per_node(environment, CPUS))
