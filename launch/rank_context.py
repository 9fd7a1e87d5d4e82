"""A rank takes its place on its host, before torch is loaded: cores, memory, environment."""

import os
import socket
from dataclasses import dataclass

from common.errors import InputError
from launch.environment import installed_backend
from launch.pinning import Pinned, pin, preload
from launch.ranks import Ranks
from launch.rendezvous import Rendezvous, meet, part
from launch.shares import CoreRequest
from launch.startup import Wait, deadline
from launch.watchdog import RankSupervisor

START_ADVICE = (
    "they have not all started; check that each host can be reached by ssh, and that no firewall "
    "blocks TCP ports between the hosts"
)


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """What a rank has been given, and where it meets the others."""

    ranks: Ranks
    pinned: Pinned
    meeting: Rendezvous | None
    """None for one rank alone."""
    backend: str
    """`gloo` or `ccl`."""
    keeper: RankSupervisor | None = None
    """The process between this one and the launcher, if there is one."""


def enter_rank_context(
    ranks: Ranks,
    *,
    request: CoreRequest,
    allocator: str,
    backend: str,
    pinned: bool,
    timeout_s: float,
) -> RankContext:
    """Settle all that must be settled before torch is loaded. Call it first of all.

    It may start this process's command again, once, with libraries preloaded.

    Args:
        ranks: Which of the job's ranks this process is.
        request: The cores that it asks for.
        allocator: See `set_allocator`.
        backend: `auto`, `shared`, `gloo` or `ccl`.
        pinned: Whether to keep to cores and memory of its own.
        timeout_s: Ends the process if the others do not come.

    Raises:
        InputError: Something asked for is not installed or does not fit this host.
    """
    chosen = chosen_backend(backend)
    preload(allocator)
    meeting = None
    if ranks.size > 1:
        wait = Wait(f"the other {ranks.size - 1} ranks", advice=START_ADVICE)
        with deadline(timeout_s, f"rank {ranks.rank} on {socket.gethostname()}", wait):
            meeting = meet(ranks, os.environ)
    affinities = meeting.affinities if meeting else None
    given = pin(ranks, affinities=affinities, request=request, backend=chosen, enabled=pinned)
    part(ranks)
    return RankContext(ranks=ranks, pinned=given, meeting=meeting, backend=chosen)


def chosen_backend(name: str) -> str:
    """torch's backend for what `distributed.backend` says: `gloo` or `ccl`.

    Raises:
        InputError: oneCCL is asked for and not installed.
    """
    installed = installed_backend()
    if name == "ccl" and installed != "ccl":
        raise InputError(
            "distributed.backend: ccl: the package oneccl_bindings_for_pytorch is not installed; "
            "install Intel's build for this torch, or set distributed.backend=gloo"
        )
    return installed if name in ("auto", "ccl") else "gloo"
