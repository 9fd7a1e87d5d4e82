"""One process on chosen cores: one compute thread on each, as the ranks of a training have them."""

from collections.abc import Sequence

from launch.host.allowance import read_allowance
from launch.host.cpu_lists import format_cpu_list
from launch.host.topology import read_topology
from launch.pinning.environment import rank_environment, use_environment
from launch.pinning.openmp import loaded_openmp
from launch.pinning.pin import bind_process, preload
from launch.placement.fitting import cores_of_quota
from launch.placement.share import Share
from retinanet.errors import InputError


def choose_cores(*, threads: int | None, cpus: Sequence[int] = ()) -> Share:
    """The cores for so many compute threads, of any socket.

    Args:
        threads: How many; None: one for each core.
        cpus: The CPUs to choose from; none: all that this process may use.

    Raises:
        InputError: There are fewer cores than threads, or some of the CPUs may not be used.
    """
    allowance = read_allowance()
    foreign = set(cpus) - allowance.cpus
    if foreign:
        raise InputError(
            f"CPUs {format_cpu_list(foreign)}: not among those that this process may use, "
            f"{format_cpu_list(allowance.cpus)}"
        )
    chosen = read_topology().restricted(set(cpus) or allowance.cpus).cpus
    cores = {cpu.core: cpu for cpu in reversed(chosen)}  # the lowest CPU of each core stays
    firsts = sorted(cores.values())
    usable = len(firsts)
    if allowance.quota is not None:
        usable = min(usable, cores_of_quota(allowance.quota))
    count = threads or usable
    if count > usable:
        noun = "core" if usable == 1 else "cores"
        raise InputError(f"--threads: {count} are more than the {usable} {noun} to be used here")
    floating = usable < len(firsts)
    used = firsts if floating else firsts[:count]
    return Share(
        socket=used[0].socket,
        nodes=tuple(sorted({cpu.node for cpu in used})),
        cpus=tuple(cpu.cpu for cpu in used),
        comm_cpus=(),
        loader_cpus=(),
        threads=count,
        floating=floating,
    )


def take_cores(share: Share, *, allocator: str = "tuned") -> list[str]:
    """Bind this process and what torch will start; call it before torch is loaded.

    It may start this process's command again, once, with libraries preloaded.

    Returns:
        Sentences about what was not possible, or not taken from the environment.

    Raises:
        InputError: The allocator's library is not installed.
    """
    preload(allocator)
    not_bound = bind_process(share.cpus)
    if not_bound:
        return not_bound
    variables = rank_environment(
        share, openmp=loaded_openmp(), backend="gloo", local_rank=0, local_ranks=1
    )
    use_environment(variables, bound=True, launcher="none")
    return []


def check_cores(share: Share) -> list[str]:
    """Load torch and see that its threads are where they should be.

    Returns:
        Sentences about what was not, and whether it has been put right.
    """
    # Here, because it loads torch.
    from launch.pinning.compute_threads import (  # noqa: PLC0415
        check_compute_threads,
        check_thread_count,
    )

    return [
        *check_thread_count(share.threads),
        *check_compute_threads(share, openmp=loaded_openmp()),
    ]
