"""The network between named hosts, measured: all-reduces over a rank on each of them."""

import itertools
from pathlib import Path

from launch.start.hostfile import read_hostfile
from launch.start.hosts import expand_hosts, hosts_with_ranks
from launch.start.mpirun import Mpirun
from launch.tune.measurements import BetweenHosts
from launch.tune.network import rank_counts
from profiling.bench.all_reduce_job import AllReduces, measure_all_reduces
from profiling.bench.measured_job import JobFailedError
from retinanet.errors import InputError

SIZES = (2**12, 2**16, 2**20, 2**23, 2**25)
"""Of the all-reduces, up to about a bucket of gradients. [bytes]"""


def named_hosts(text: str | None, hostfile: Path | None) -> tuple[str, ...]:
    """The hosts that the command line names, as `launch run` reads them; none: no network.

    Raises:
        InputError: The list or the file is none, or names less than two hosts.
    """
    if hostfile is not None:
        hosts = tuple(one.name for one in read_hostfile(hostfile))
    elif text is not None and ":" in text:
        hosts = tuple(name for name, _ in hosts_with_ranks(text, ranks=None))
    else:
        hosts = expand_hosts(text) if text is not None else ()
    if len(hosts) == 1:
        option = f"--hostfile {hostfile}" if hostfile else f"--measure-hosts {text}"
        raise InputError(f"{option}: a network joins two hosts or more; name another one")
    return hosts


def measure_between(hosts: tuple[str, ...], *, mpirun: Mpirun) -> BetweenHosts:
    """Time all-reduces over a rank on each of the first two, four and so on, and of all.

    Raises:
        InputError: Ranks could not be started on all of them, or share a host.
    """
    found = [measure_over(hosts[:count], mpirun=mpirun) for count in rank_counts(len(hosts))]
    times = tuple(itertools.chain.from_iterable(one.times for one in found))
    return BetweenHosts(hosts=hosts, all_reduces=times, over=found[-1].over)


def measure_over(hosts: tuple[str, ...], *, mpirun: Mpirun) -> AllReduces:
    """Those over a rank on each of these.

    Raises:
        InputError: See `measure_between`.
    """
    names = ",".join(hosts)
    on_hosts = tuple((host, 1) for host in hosts)
    try:
        found = measure_all_reduces(sizes=SIZES, ranks=len(hosts), mpirun=mpirun, hosts=on_hosts)
    except JobFailedError as error:
        raise InputError(
            f"{names}: the ranks on them could not measure ({error}); check with python -m launch "
            f"run --np {len(hosts)} --hosts {names} -- hostname"
        ) from error
    if found.hosts < len(hosts):
        raise InputError(f"{names}: are names of {found.hosts} hosts only; name different ones")
    return found
