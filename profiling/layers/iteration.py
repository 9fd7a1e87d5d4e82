"""One iteration: forward and backward pass, watched layer by layer or not. No weights change."""

from collections import defaultdict
from contextlib import nullcontext
from typing import Any

from profiling.layers.clock import Clock
from profiling.layers.models import TimedModel
from profiling.layers.recorder import LOSS, Recorder


def plain_iteration(timed: TimedModel, clock: Clock) -> dict[str, float]:
    """Milliseconds of the whole `forward` and `backward`, watched by nobody."""
    return run_once(timed, clock, recorder=None)


def watched_iteration(timed: TimedModel, recorder: Recorder) -> dict[str, Any]:
    """Milliseconds of the whole `forward` and `backward`, and of each layer.

    Returns:
        Beside them `layers`, by name [forward, backward], where backward is None for a layer that
        had none, and `nodes`: backward between layers, by node of autograd's graph.
    """
    recorder.clear()
    with recorder.attached(timed.folded):
        found: dict[str, Any] = run_once(timed, recorder.clock, recorder=recorder)
    forward: dict[str, float] = defaultdict(float)
    backward: dict[str, float] = defaultdict(float)
    nodes: dict[str, float] = defaultdict(float)
    for span in recorder.spans:
        spent = recorder.clock.milliseconds(span.start, span.end)
        if span.layer is None:
            nodes[span.work] += spent
        else:
            (forward if span.work == "forward" else backward)[span.layer] += spent
    found["layers"] = {name: [forward[name], backward.get(name)] for name in forward}
    found["nodes"] = dict(nodes)
    return found


def run_once(timed: TimedModel, clock: Clock, *, recorder: Recorder | None) -> dict[str, float]:
    """The passes, with a stamp before and after each."""
    timed.network.zero_grad(set_to_none=True)
    clock.finish()
    start = clock.stamp()
    outputs = timed.forward()
    with recorder.region(LOSS) if recorder else nullcontext():
        loss = timed.loss(outputs)
    middle = clock.stamp()
    if recorder:
        recorder.watch_backward(loss)
    begin = clock.stamp()
    loss.backward()
    end = clock.stamp()
    clock.finish()
    return {
        "forward": clock.milliseconds(start, middle),
        "backward": clock.milliseconds(begin, end),
    }
