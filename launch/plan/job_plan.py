"""The places of all ranks of a job, over one host or several alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from launch.host.topology import Topology
from launch.pinning.environment import rank_environment
from launch.placement.notes import notes
from launch.placement.place_ranks import place_ranks
from launch.placement.share import CoreRequest, Share
from launch.start.starting_words import ANY_RANKS_OPTION


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One rank: its part of its host, and its environment."""

    rank: int
    """Over all hosts."""
    share: Share
    environment: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """The ranks of one host."""

    name: str
    ranks: tuple[RankPlan, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole job on hosts that are all alike."""

    topology: Topology
    """Every online CPU of a host."""
    allowed: Topology
    """Those that ranks may use."""
    quota: float | None
    """CPUs' worth of time that the ranks of a host may use; None: no limit."""
    hosts: tuple[HostPlan, ...]
    """In order of rank."""
    notes: tuple[str, ...]


def make_plan(
    topology: Topology,
    *,
    allowed: Topology,
    quota: float | None,
    hosts: Sequence[tuple[str, int]],
    request: CoreRequest,
    openmp: str,
    backend: str,
    option: str = ANY_RANKS_OPTION,
) -> Plan:
    """Place every rank.

    Args:
        topology: The CPUs of each host.
        allowed: Those that ranks may use.
        quota: CPUs' worth of time for each host; None: no limit.
        hosts: Names and numbers of ranks; ranks are counted in this order.
        request: Cores for each rank.
        openmp: `gnu` or `intel`: whose variables the environment sets.
        backend: `gloo` or `ccl`, likewise.
        option: How the user sets the number of ranks, for messages.

    Raises:
        InputError: The ranks of some host do not fit; names numbers that do.
    """
    counts = dict.fromkeys(count for _, count in hosts)
    shares = {
        count: place_ranks(allowed, ranks=count, request=request, quota=quota, option=option)
        for count in counts
    }
    firsts = accumulate((count for _, count in hosts), initial=0)
    placed = tuple(
        HostPlan(
            name=name,
            ranks=tuple(
                RankPlan(
                    rank=first + local_rank,
                    share=share,
                    environment=rank_environment(
                        share,
                        openmp=openmp,
                        backend=backend,
                        local_rank=local_rank,
                        local_ranks=count,
                    ),
                )
                for local_rank, share in enumerate(shares[count])
            ),
        )
        for (name, count), first in zip(hosts, firsts, strict=False)
    )
    found = (notes(allowed, shares[count], request=request, quota=quota) for count in counts)
    return Plan(
        topology=topology,
        allowed=allowed,
        quota=quota,
        hosts=placed,
        notes=tuple(dict.fromkeys(note for of_host in found for note in of_host)),
    )
