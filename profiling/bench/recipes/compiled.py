"""torch.compile in a contestant: what is compiled, and what the compiled graphs move."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes


def compile_parts(model: Any) -> None:
    """Compile a detector's backbone and head, each whole, by inductor; runs at their first call.

    The parts around them, such as matching, have shapes that change, on which Python spends more
    than on their operators. Inductor counts the bytes of each graph meanwhile.
    """
    torch._logging.set_logs(inductor_metrics=True)
    for handler in logging.getLogger("torch").handlers:
        handler.setLevel(logging.WARNING)
    for part in (model.backbone, model.head):
        assert isinstance(part, nn.Module)
        part.compile()
        assert part._compiled_call_impl is not None
        part._compiled_call_impl = uncounted(part._compiled_call_impl)


def uncounted(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that runs as such while bytes are counted, which it hides."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return compiled(*args, **kwargs)

    return call


def compiled_bytes() -> int:
    """Bytes that all graphs compiled so far read and write, each graph called once."""
    from torch._inductor import metrics  # noqa: PLC0415 (slow to load)

    return int(metrics.num_bytes_accessed)
