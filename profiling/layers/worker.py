"""A configuration's own process: `python -m profiling.layers.worker SPECIFICATION`.

See `common.processes.JsonWorker`, and `profiling.layers.timing` for the questions.
"""

from typing import Any

from common.processes import Answering, serve
from launch.limits import read_allowance
from launch.pinning import check_cores, choose_cores, take_cores
from profiling.bench.variant import apply_memory
from profiling.layers.study import Configuration, Subject


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Take cores and memory, make the network and run it once; return facts and what answers."""
    configuration = Configuration(**specification["configuration"])
    subject = Subject(**specification["subject"])
    if configuration.memory is not None:
        apply_memory(configuration.memory, allowed=read_allowance().memory_nodes)
    take_cores(choose_cores(threads=configuration.threads))
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
    serve(prepare)
