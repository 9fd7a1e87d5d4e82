"""Marks in torch.profiler's trace that say which module called an operator."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.profiler import record_function

from retinanet.engine.engines import PreparedTraining
from retinanet.engine.network import FoldedForward


@contextmanager
def modules_marked(prepared: PreparedTraining) -> Iterator[None]:
    """Mark each module's forward pass as `module: backbone.body.layer3.0.conv2` meanwhile.

    The torch engine computes most modules without calling them, and tells of them itself.
    """
    names = {one: f"module: {name}" for name, one in prepared.model.named_modules() if name}
    marks: list[record_function] = []

    def begin(module: nn.Module, inputs: object) -> None:
        marks.append(record_function(names[module]))
        marks[-1].__enter__()

    def end(module: nn.Module, inputs: object, outputs: object) -> None:
        marks.pop().__exit__(None, None, None)

    handles = [one.register_forward_pre_hook(begin) for one in names]
    handles += [one.register_forward_hook(end, always_call=True) for one in names]
    forward = prepared.forward
    try:
        if isinstance(forward, FoldedForward):
            around = forward.around
            forward.around = lambda module: record_function(names[module])
        yield
    finally:
        if isinstance(forward, FoldedForward):
            forward.around = around
        for handle in handles:
            handle.remove()
