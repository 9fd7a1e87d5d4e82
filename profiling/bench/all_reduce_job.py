"""All-reduces of several sizes, timed by ranks under mpirun."""

import sys
from collections.abc import Sequence
from contextlib import closing

from launch.start.mpirun import Mpirun
from launch.start.mpirun_command import Hosts
from launch.tune.network import AllReduceTime
from profiling.bench.measured_job import messages_of


def measure_all_reduces(
    *, sizes: Sequence[int], ranks: int, mpirun: Mpirun, hosts: Hosts = ()
) -> tuple[list[AllReduceTime], str]:
    """Time them over torch's process group, whatever way shared memory would be.

    Args:
        sizes: [bytes]
        ranks: At least 2.
        mpirun: Starts them.
        hosts: See `mpirun_command`; none: all on this one.

    Returns:
        A median for each size, and over what they went, in words.

    Raises:
        JobFailedError: A rank could not go on; it has said why.
    """
    words = [word for size in sizes for word in ("--size", str(size))]
    command = [sys.executable, "-m", "profiling.bench.all_reduce_rank", *words]
    with closing(messages_of(command, ranks=ranks, hosts=hosts, mpirun=mpirun, say=print)) as told:
        [found] = told
    times = [
        AllReduceTime(ranks=ranks, size=int(size), seconds=seconds)
        for size, seconds in found["seconds"].items()
    ]
    where = f"{found['hosts']} hosts" if found["hosts"] > 1 else "sockets of one host"
    return times, f"measured over {where}, {found['backend']}"
