"""Shares of ranks that are bound to no cores: they have a number of threads."""

from launch.host.sockets import count_cores, sockets_of
from launch.host.topology import Topology
from launch.placement.fitting import cores_of_quota
from launch.placement.share import CoreRequest, Share


def unbound_share(
    topology: Topology, *, ranks: int, request: CoreRequest, quota: float | None
) -> Share:
    """A rank's share where nothing is bound: threads, on any of the CPUs."""
    cores = count_cores(sockets_of(topology))
    usable = cores if quota is None else min(cores, cores_of_quota(quota))
    return anywhere(topology, threads=request.threads or max(1, usable // ranks))


def anywhere(topology: Topology, *, threads: int) -> Share:
    """Threads that move among all these CPUs."""
    return Share(
        socket=topology.cpus[0].socket,
        nodes=tuple(sorted({cpu.node for cpu in topology.cpus})),
        cpus=tuple(cpu.cpu for cpu in topology.cpus),
        comm_cpus=(),
        loader_cpus=(),
        threads=threads,
        floating=True,
    )
