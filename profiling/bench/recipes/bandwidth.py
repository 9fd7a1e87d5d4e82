"""The memory's bandwidth, as large copies have it."""

from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload
from profiling.peaks.bandwidth import BUFFER_BYTES, REPETITIONS, movers
from profiling.peaks.median_seconds import median_seconds


def prepare(workload: Workload) -> Prepared:
    """All of torch's threads; `workload` does not matter. A run's details are bytes a second.

    Half the traffic reads and half writes, as in a loss that turns logits into gradients.
    """
    calls = movers()

    def run() -> dict[str, float]:
        return {
            name: 2 * BUFFER_BYTES / median_seconds(call, repetitions=REPETITIONS)
            for name, call in calls.items()
        }

    return Prepared(run)
