"""All-reduces of several sizes, timed by ranks under mpirun."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from launch.start.mpirun import Mpirun
from launch.start.mpirun_command import Hosts
from launch.tune.network import AllReduceTime
from profiling.bench.measured_job import JobFailedError, messages_of


@dataclass(frozen=True, kw_only=True)
class AllReduces:
    """What the ranks of one job have measured."""

    times: tuple[AllReduceTime, ...]
    """A median for each size."""
    hosts: int
    """On which the ranks ran."""
    backend: str
    """Of torch's process group."""

    @property
    def over(self) -> str:
        """What they went over, in words."""
        where = f"{self.hosts} hosts" if self.hosts > 1 else "sockets of one host"
        return f"measured over {where}, {self.backend}"


def measure_all_reduces(
    *,
    sizes: Sequence[int],
    ranks: int,
    mpirun: Mpirun,
    hosts: Hosts = (),
    say: Callable[[str], None] = print,
) -> AllReduces:
    """Time them over torch's process group, whatever way shared memory would be.

    Args:
        sizes: [bytes]
        ranks: At least 2.
        mpirun: Starts them.
        hosts: See `mpirun_command`; none: all on this one.
        say: Told what the ranks print beside.

    Raises:
        JobFailedError: A rank could not go on; it has said why.
    """
    words = [word for size in sizes for word in ("--size", str(size))]
    command = [sys.executable, "-m", "profiling.bench.all_reduce_rank", *words]
    with closing(messages_of(command, ranks=ranks, hosts=hosts, mpirun=mpirun, say=say)) as told:
        messages = list(told)
    if not messages:
        raise JobFailedError(1)
    [found] = messages
    times = tuple(
        AllReduceTime(ranks=ranks, size=int(size), seconds=seconds)
        for size, seconds in found["seconds"].items()
    )
    return AllReduces(times=times, hosts=found["hosts"], backend=found["backend"])
