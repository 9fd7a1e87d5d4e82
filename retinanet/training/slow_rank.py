"""A rank for which all others wait: a host that is busy, hot or older than the rest."""

from collections import Counter, deque
from collections.abc import Sequence
from statistics import fmean

from retinanet.config import Config
from retinanet.training.loop import StepResult

STEPS = 20
"""Looked at together: single steps are slow for many reasons."""
MOST_OF_THEM = 0.8
LONGER_TOLD = 0.25
"""Of the others' time, from which on it is worth a line."""


class SlowRank:
    """Looks for it in forward passes: in a backward pass those that are quick wait for the slow."""

    def __init__(self, hosts: Sequence[str], *, advice: str = "") -> None:
        """`hosts`: of each rank, for the message; `advice`: its end."""
        self._hosts = hosts
        self._advice = advice
        self._slowest: deque[int] = deque(maxlen=STEPS)
        self._longer: deque[float] = deque(maxlen=STEPS)
        self._told: int | None = None

    def heard(self, results: Sequence[StepResult]) -> str | None:
        """Take a step of all ranks; returns what to say of a slow one, once for each rank."""
        times = [one.forward_seconds for one in results]
        slowest = times.index(max(times))
        others = [one for rank, one in enumerate(times) if rank != slowest]
        if not others or not fmean(others):
            return None
        self._slowest.append(slowest)
        self._longer.append(times[slowest] / fmean(others) - 1)
        rank, count = Counter(self._slowest).most_common(1)[0]
        longer = fmean(self._longer)
        is_slow = count >= MOST_OF_THEM * STEPS and longer >= LONGER_TOLD
        if not is_slow or rank == self._told:
            return None
        self._told = rank
        return (
            f"note: rank {rank} on {self._hosts[rank]} is slow, and all wait for it: its forward "
            f"passes took {longer:.0%} longer than the others' in the last {STEPS} steps"
            f"{self._advice}"
        )


def advice_on_slow_rank(config: Config) -> str:
    """What helps against one that stays slow: fewer images for it, where it has as many as all."""
    if config.distributed.batch_split != "even" or config.training.batch_size == 1:
        return ""
    return "; if it stays so, --resume with distributed.batch_split=speed gives it fewer images"
