"""CPUs of a rank on which it does not compute."""

from launch.host.topology import Topology
from launch.placement.share import Share


def spare_cpus(share: Share, topology: Topology) -> tuple[int, ...]:
    """Those that load images; without them, the other hyperthreads of the cores that compute. None
    where there are none, or where threads float.

    Args:
        share: The rank's.
        topology: The CPUs that the ranks share.
    """
    if share.loader_cpus or share.floating:
        return share.loader_cpus
    cores = {cpu.core for cpu in topology.cpus if cpu.cpu in share.cpus}
    return tuple(
        cpu.cpu for cpu in topology.cpus if cpu.core in cores and cpu.cpu not in share.cpus
    )
