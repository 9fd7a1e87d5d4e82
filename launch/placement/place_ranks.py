"""Which cores each rank of a host gets."""

from collections.abc import Sequence

from launch.host.sockets import sockets_of
from launch.host.topology import Topology
from launch.placement.fitting import Misfit, fit_ranks, fitting_shapes
from launch.placement.share import CoreRequest, Share
from launch.start.starting_words import ANY_RANKS_OPTION
from retinanet.errors import InputError

CHOICES_SHOWN = 7


def place_ranks(
    topology: Topology,
    *,
    ranks: int,
    request: CoreRequest,
    quota: float | None = None,
    option: str = ANY_RANKS_OPTION,
) -> list[Share]:
    """Place ranks on a host: none over two sockets, nor over memory nodes if there are enough.

    Ranks up to the number of sockets have one each, more are a multiple of it, and the same holds
    for the memory nodes of a socket. Beyond that, ranks share the cores of a node. Where sockets or
    nodes differ in size, larger ones may take more ranks. All ranks have as many cores as each
    other; what is left over stays idle, up to `MOST_IDLE` of all. A core is a physical one; the
    lowest of its allowed CPUs computes. Of a rank's cores the first compute, the next communicate,
    the next load images.

    A CPU quota that gives fewer cores than there are makes ranks float: their threads are as many
    as the quota keeps busy, on any core of their nodes, and no cores are set aside.

    Args:
        topology: The CPUs that may be used, and no others.
        ranks: Ranks on this host.
        request: Cores for each of them.
        quota: CPUs' worth of time that all may use together; None: no limit.
        option: How the user sets the number of ranks, for the message.

    Returns:
        The shares in order of local rank; ranks on one socket follow each other.

    Raises:
        InputError: The ranks do not fit, or leave many cores idle; names choices that do.
    """
    assert ranks > 0, ranks
    sockets = sockets_of(topology)
    if not sockets:
        raise InputError("none of the allowed CPUs is online on this host; allow others")
    fitted = fit_ranks(sockets, ranks=ranks, request=request, quota=quota)
    if isinstance(fitted, Misfit):
        shapes = fitting_shapes(sockets, request=request, quota=quota)
        numbers = [number for number, _ in shapes]
        raise InputError(f"{fitted.why}: use {advice(fitted, numbers, ranks=ranks, option=option)}")
    return fitted


def advice(misfit: Misfit, numbers: Sequence[int], *, ranks: int, option: str) -> str:
    """Numbers of ranks that fit, the nearest to what was asked for, and other ways out."""
    nearest = sorted(sorted(numbers, key=lambda number: abs(number - ranks))[:CHOICES_SHOWN])
    ways = [*misfit.advice]
    if nearest:
        plural = "" if nearest == [1] else "s"
        ways.insert(0, f"{enumerated(nearest)} rank{plural} ({option})")
    return ", or ".join(ways) or "fewer ranks with fewer cores each"


def enumerated(numbers: Sequence[int]) -> str:
    """Such as `1, 2 or 4`."""
    words = [str(number) for number in numbers]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
