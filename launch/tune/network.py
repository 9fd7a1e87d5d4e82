"""The time of an all-reduce between hosts: a ring, with a latency and a bandwidth."""

from collections.abc import Sequence
from dataclasses import dataclass


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


def ring(ranks: int, size: int) -> tuple[int, float]:
    """Messages one after another, and bytes through each link, of a ring's all-reduce."""
    messages = 2 * (ranks - 1)
    return messages, messages * size / ranks


def fit_network(times: Sequence[AllReduceTime], *, source: str) -> Network:
    """Latency and bandwidth from measurements of several sizes; none of them is negative.

    Least squares of relative errors, so that small messages count as much as large ones.

    Args:
        times: Of at least two sizes, with two ranks or more.
        source: Where they were measured.
    """
    import numpy as np  # noqa: PLC0415 - a command line loads no numpy
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # noqa: PLC0415

    rows = [np.array(ring(one.ranks, one.size)) / one.seconds for one in times]
    scale = np.max(rows, axis=0)
    found, _ = nnls(np.array(rows) / scale, np.ones(len(rows)))
    latency, per_byte = found / scale
    least = np.finfo(float).tiny
    return Network(latency=float(latency), bandwidth=1 / max(float(per_byte), least), source=source)
