"""How long something takes, as the middle of a few repetitions."""

import time
from collections.abc import Callable
from statistics import median


def median_seconds(call: Callable[[], object], *, repetitions: int) -> float:
    """Median of that many calls, one after the other. [seconds]"""
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
