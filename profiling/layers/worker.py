"""A configuration's own process: `python -m profiling.layers.worker SPECIFICATION`.

Questions: `warm-up N`, `measure N` and `primitives 1`, see `profiling.bench.serve`.
"""

from typing import Any

from launch.host.allowance import read_allowance
from launch.resources import peak_resident_mb
from profiling.bench.serve import Answering, serve
from profiling.layers.huge_pages import huge_pages_mb
from profiling.layers.memory_choice import apply_memory
from profiling.layers.subject import PLAIN_EVERY, Configuration, Subject
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

    from profiling.bench.onednn_seconds import onednn_seconds  # noqa: PLC0415
    from profiling.layers.clock import clock_of  # noqa: PLC0415
    from profiling.layers.facts import facts_of  # noqa: PLC0415
    from profiling.layers.iteration import plain_iteration, watched_iteration  # noqa: PLC0415
    from profiling.layers.models import timed_model  # noqa: PLC0415
    from profiling.layers.recorder import Recorder  # noqa: PLC0415

    clock = clock_of(subject.device)
    if not configuration.onednn:
        mkldnn.set_flags(_enabled=False)
    timed = timed_model(subject, onednn=configuration.onednn)
    recorder = Recorder(timed.network, clock)
    measured = 0

    def measure(count: int) -> dict[str, Any]:
        nonlocal measured
        watched, plain = [], []
        for _ in range(count):
            watched.append(watched_iteration(timed, recorder))
            if measured % PLAIN_EVERY == 0:
                plain.append(plain_iteration(timed, clock))
            measured += 1
        memory = {"peak_mb": peak_resident_mb(), "huge_pages_mb": huge_pages_mb()}
        return {"watched": watched, "plain": plain, **memory}

    def warm_up(count: int) -> dict[str, Any]:
        done = [plain_iteration(timed, clock) for _ in range(count)]
        return {"last_ms": sum(done[-1].values()), "peak_mb": peak_resident_mb()}

    def primitives(_: int) -> dict[str, Any]:
        return {"seconds": onednn_seconds(lambda: plain_iteration(timed, clock))}

    questions = {"warm-up": warm_up, "measure": measure, "primitives": primitives}

    def answer(question: str) -> object:
        word, count = question.split()
        return questions[word](int(count))

    first = watched_iteration(timed, recorder)
    return facts_of(subject, timed, list(first["layers"]), recorder, notes=notes), answer


if __name__ == "__main__":
    main()
