"""The memory's bandwidth, as large copies have it."""

import time
from statistics import median

import torch

from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload

BUFFER_BYTES = 256 * 2**20
"""Many times what any cache holds."""

REPETITIONS = 5


def prepare(workload: Workload) -> Prepared:
    """All of torch's threads; `workload` does not matter. A run's details are bytes a second.

    Half the traffic reads and half writes, as in a loss that turns logits into gradients.
    """
    source = torch.ones(BUFFER_BYTES // 4)
    target = torch.zeros_like(source)

    def copy() -> None:
        target.copy_(source)

    def scale_in_place() -> None:
        target.mul_(1.0)

    works = {"copy": copy, "scale in place": scale_in_place}

    def run() -> dict[str, float]:
        rates: dict[str, float] = {}
        for name, work in works.items():
            seconds = []
            for _ in range(REPETITIONS):
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
            rates[name] = 2 * BUFFER_BYTES / median(seconds)
        return rates

    return Prepared(run)
