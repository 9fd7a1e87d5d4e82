"""The combinations of ranks and threads of a scaling study, and which of them fit the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launch.host.sockets import sockets_of
from launch.host.topology import Topology
from launch.placement.fitting import Misfit, count_ranks, fit_ranks
from launch.placement.share import CoreRequest
from retinanet.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Combination:
    """So many ranks of so many threads."""

    ranks: int
    threads: int
    """Compute threads of each rank."""
    batch_size: int
    """Images of each rank in a step."""
    hosts: tuple[tuple[str, int], ...] = ()
    """Names, and the number of ranks of each; none: this host."""
    misfit: str = ""
    """Why it cannot run; empty if it can."""

    @property
    def name(self) -> str:
        """Such as `2 ranks × 1 thread`."""
        return f"{count_ranks(self.ranks)} × {count_threads(self.threads)}"

    @property
    def images(self) -> int:
        """Of a step, over all ranks."""
        return self.ranks * self.batch_size


def count_threads(threads: int) -> str:
    """`1 thread`, `2 threads`."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def combine(
    ranks: Sequence[int],
    threads: Sequence[int],
    *,
    batch_size: int,
    global_batch: int | None,
    place_on_hosts: Callable[[int], tuple[tuple[str, int], ...]],
    allowed: Topology,
    quota: float | None,
    request: CoreRequest,
) -> list[Combination]:
    """Every combination, by ranks and then by threads.

    Args:
        ranks: Numbers of ranks over all hosts.
        threads: Numbers of compute threads of a rank.
        batch_size: Images of a rank in a step.
        global_batch: Images of all ranks in a step, which then counts instead.
        place_on_hosts: From a number of ranks to those of each host; none: all on this one.
        allowed: The CPUs of each host that ranks may use.
        quota: CPUs' worth of time for each host; None: no limit.
        request: The cores of a rank that do not compute; its threads are not looked at.
    """
    found = []
    for count in ranks:
        hosts: tuple[tuple[str, int], ...] = ()
        misfit = ""
        try:
            hosts = place_on_hosts(count)
        except InputError as error:
            misfit = str(error)
        if global_batch is not None and global_batch % count:
            misfit = f"{global_batch} images do not divide evenly among {count_ranks(count)}"
        for of_rank in threads:
            wanted = CoreRequest(
                threads=of_rank, comm_cores=request.comm_cores, loader_cores=request.loader_cores
            )
            counts = [on_host for _, on_host in hosts] or [count]
            found.append(
                Combination(
                    ranks=count,
                    threads=of_rank,
                    batch_size=global_batch // count if global_batch else batch_size,
                    hosts=hosts,
                    misfit=misfit or why_not(allowed, counts, request=wanted, quota=quota),
                )
            )
    return found


def why_not(
    allowed: Topology, counts: Sequence[int], *, request: CoreRequest, quota: float | None
) -> str:
    """Why so many ranks do not fit a host, for the first number that does not; else empty."""
    for count in dict.fromkeys(counts):
        fitted = fit_ranks(sockets_of(allowed), ranks=count, request=request, quota=quota)
        if isinstance(fitted, Misfit):
            return fitted.why
    return ""
