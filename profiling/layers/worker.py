"""A configuration's own process: `python -m profiling.layers.worker SPECIFICATION`.

See `profiling.bench.worker_pool`, and `profiling.layers.timing` for the questions.
"""

from typing import Any

from launch.limits import read_allowance
from launch.pinning import check_cores, choose_cores, take_cores
from profiling.bench.variant import apply_memory
from profiling.bench.worker_pool import Answering, serve
from profiling.layers.study import Configuration, Subject


def main() -> None:
    """Prepare the network, then time iterations as asked."""
    serve(settle, prepare)


def settle(specification: dict[str, Any]) -> None:
    """Take cores and memory, for which torch has to wait."""
    configuration = Configuration(**specification["configuration"])
    if configuration.memory is not None:
        apply_memory(configuration.memory, allowed=read_allowance().memory_nodes)
    take_cores(choose_cores(threads=configuration.threads))


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Make the network and run it once; what answers afterwards."""
    configuration = Configuration(**specification["configuration"])
    subject = Subject(**specification["subject"])
    notes = check_cores(choose_cores(threads=configuration.threads))
    # torch had to wait for the cores.
    from torch.backends import mkldnn  # noqa: PLC0415

    from profiling.layers.timing import (  # noqa: PLC0415
        Recorder,
        answers_on,
        clock_of,
        facts_of,
        timed_model,
        watched_iteration,
    )

    clock = clock_of(subject.device)
    if not configuration.onednn:
        mkldnn.set_flags(_enabled=False)
    timed = timed_model(subject, onednn=configuration.onednn)
    recorder = Recorder(timed.network, clock)
    layers = list(watched_iteration(timed, recorder)["layers"])
    facts = facts_of(subject, timed, layers, recorder, notes=notes)
    return facts, answers_on(timed, recorder)


if __name__ == "__main__":
    main()
