"""The time of an all-reduce between hosts: a ring, with a latency and a bandwidth."""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_ON_HOST = 8
"""Ranks of one host between which all-reduces are timed: it has fewer sockets than so many."""
SMALL_ERROR = 0.1
"""Of a fit, a share: errors below it count by their squares."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """What joins the ranks."""

    latency: float
    """Of a message. [seconds]"""
    bandwidth: float
    """Of each host's link, in one direction. [bytes/s]"""
    source: str
    """Whether it was given, or measured where."""

    def all_reduce_seconds(self, size: int, *, ranks: int) -> float:
        """Of so many bytes over a ring of ranks, hosts one after another in it.

        Each rank sends a part of `size / ranks` to the next 2 (ranks - 1) times, all at once; so
        each host's link carries one part at a time in each direction (Thakur et al. 2005).
        """
        messages, transferred = ring(ranks, size)
        return messages * self.latency + transferred / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class AllReduceTime:
    """A measured all-reduce."""

    ranks: int
    size: int
    """[bytes]"""
    seconds: float
    """Median."""


def rank_counts(most: int) -> list[int]:
    """Over how many ranks all-reduces are timed: 2, 4, 8 and so on, and the most there can be."""
    return [2**power for power in range(1, (most - 1).bit_length())] + [most]


def rank_counts_of_host(cores: int, *, sockets: int) -> list[int]:
    """Those up to 8 that share a host's cores evenly; and 2."""
    counts = rank_counts(MOST_ON_HOST)
    return [one for one in counts if one == 2 or (cores % one == 0 and one % sockets == 0)]


def ring(ranks: int, size: int) -> tuple[int, float]:
    """Messages one after another, and bytes through each link, of a ring's all-reduce."""
    messages = 2 * (ranks - 1)
    return messages, messages * size / ranks


def fit_network(times: Sequence[AllReduceTime], *, source: str) -> Network:
    """Latency and bandwidth from measurements of several sizes.

    Errors are logarithms of what the model says over what was measured, so that small messages
    count as much as large ones; and a large error counts but in proportion, as what buffers a
    message whole lets it pass faster than the link is.

    Args:
        times: Of at least two sizes, with two ranks or more.
        source: Where they were measured.
    """
    import numpy as np  # noqa: PLC0415 - a command line loads no numpy
    from scipy.optimize import least_squares  # type: ignore[import-untyped]  # noqa: PLC0415

    work = np.array([ring(one.ranks, one.size) for one in times])
    seconds = np.array([one.seconds for one in times])
    costs = np.min(seconds[:, None] / work, axis=0)  # each as if there were no other
    found = least_squares(
        lambda logs: np.log(work @ np.exp(logs) / seconds),
        np.log(costs),
        loss="soft_l1",
        f_scale=SMALL_ERROR,
    )
    latency, per_byte = np.exp(found.x)
    return Network(latency=float(latency), bandwidth=1 / float(per_byte), source=source)
