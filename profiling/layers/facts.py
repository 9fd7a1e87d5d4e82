"""What a worker tells of its network before any time counts."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from profiling.bench.convolution_flop import Flop
from profiling.layers.models import TimedModel, flop_of
from profiling.layers.recorder import LOSS, Recorder
from profiling.layers.subject import Subject
from profiling.peaks.measure import versions


def facts_of(
    subject: Subject,
    timed: TimedModel,
    layers: Sequence[str],
    recorder: Recorder,
    *,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Its layers in the order of their first call, and what computes them.

    Args:
        subject: What is timed.
        timed: The network.
        layers: Names of those that ran.
        recorder: It has watched an iteration.
        notes: Sentences about cores and memory.
    """
    modules = dict(timed.network.named_modules())
    flop = flop_of(subject)
    calls = Counter(span.layer for span in recorder.spans if span.work == "forward")
    first = {span.layer: place for place, span in reversed(list(enumerate(recorder.spans)))}
    return {
        "layers": [
            {
                "name": name,
                "type": LOSS if name == LOSS else type(modules[name]).__name__,
                "calls": calls[name],
                "trains": name != LOSS and trains(modules[name]),
                "gflop_forward": flop.get(name, Flop()).forward / 1e9,
                "gflop_backward": flop.get(name, Flop()).backward / 1e9,
            }
            for name in sorted(layers, key=lambda name: first[name])
        ],
        "winograd": timed.folded is not None and timed.folded.has_winograd,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if subject.device == "cuda" else "cpu",
        "notes": list(notes),
    }


def trains(layer: nn.Module) -> bool:
    """Whether it has weights that get gradients."""
    return any(parameter.requires_grad for parameter in layer.parameters())
