"""What a worker is asked: `warm-up N`, `measure N`, `primitives 1`."""

from typing import Any

from launch.resources import peak_resident_mb
from profiling.bench.onednn_seconds import onednn_seconds
from profiling.bench.serve import Answering
from profiling.huge_pages import huge_pages_mb
from profiling.layers.iteration import plain_iteration, watched_iteration
from profiling.layers.models import TimedModel
from profiling.layers.recorder import Recorder
from profiling.layers.subject import PLAIN_EVERY


def answers_on(timed: TimedModel, recorder: Recorder) -> Answering:
    """What answers, each with an object of JSON."""
    measured = 0

    def warm_up(count: int) -> dict[str, Any]:
        done = [plain_iteration(timed, recorder.clock) for _ in range(count)]
        return {"last_ms": sum(done[-1].values()), "peak_mb": peak_resident_mb()}

    def measure(count: int) -> dict[str, Any]:
        nonlocal measured
        watched, plain = [], []
        for _ in range(count):
            watched.append(watched_iteration(timed, recorder))
            if measured % PLAIN_EVERY == 0:
                plain.append(plain_iteration(timed, recorder.clock))
            measured += 1
        memory = {"peak_mb": peak_resident_mb(), "huge_pages_mb": huge_pages_mb()}
        return {"watched": watched, "plain": plain, **memory}

    def primitives(_: int) -> dict[str, Any]:
        return {"seconds": onednn_seconds(lambda: plain_iteration(timed, recorder.clock))}

    questions = {"warm-up": warm_up, "measure": measure, "primitives": primitives}

    def answer(question: str) -> object:
        word, count = question.split()
        return questions[word](int(count))

    return answer
