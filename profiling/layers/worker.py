"""A configuration's own process: `python -m profiling.layers.worker SPECIFICATION`.

See `profiling.bench.serve`, and `profiling.layers.answers` for the questions.
"""

from typing import Any

from launch.host.allowance import read_allowance
from profiling.bench.serve import Answering, serve
from profiling.layers.subject import Configuration, Subject
from profiling.memory_choice import apply_memory
from profiling.peaks.cores import check_cores, choose_cores, take_cores


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

    from profiling.layers.answers import answers_on  # noqa: PLC0415
    from profiling.layers.clock import clock_of  # noqa: PLC0415
    from profiling.layers.facts import facts_of  # noqa: PLC0415
    from profiling.layers.iteration import watched_iteration  # noqa: PLC0415
    from profiling.layers.models import timed_model  # noqa: PLC0415
    from profiling.layers.recorder import Recorder  # noqa: PLC0415

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
