"""Pooling, on oneDNN's own tensors."""

from collections.abc import Callable

import torch
from torch import Tensor

from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.geometry import Geometry, geometry
from profiling.replay.torch_runner.operators.reaching import (
    NotReachedError,
    Run,
    name_of,
    require_plain,
)
from profiling.replay.torch_runner.operators.tensors import make_opaque, memory_of, require_memory


def prepare_pooling(problem: Problem) -> Run:
    """The largest or the mean of windows, forward or backward.

    Raises:
        NotReachedError: torch has no such call.
    """
    require_plain(problem)
    sizes = geometry(problem.shape)
    spatial = len(sizes.input)
    if spatial not in (2, 3):
        raise NotReachedError(f"torch pools oneDNN's tensors in 2 or 3 dimensions, not {spatial}")
    memory = require_memory(problem, "src", "data")
    source = make_opaque(sizes.src, memory)
    gradient = make_opaque(sizes.dst, memory_of(problem, "dst") or memory)
    calls = calls_of(problem.algorithm, sizes, source, gradient)
    if problem.direction not in calls:
        raise NotReachedError(f"torch does not call {name_of(problem)} of {problem.algorithm}")
    return calls[problem.direction]


def calls_of(
    algorithm: str, sizes: Geometry, source: Tensor, gradient: Tensor
) -> dict[str, Callable[[], object]]:
    """By direction."""
    number = len(sizes.input)
    window = (sizes.kernel, sizes.stride, sizes.padding)
    aten = torch.ops.aten
    if algorithm == "pooling_max":
        pool = getattr(aten, f"mkldnn_max_pool{number}d")
        pool_backward = getattr(aten, f"mkldnn_max_pool{number}d_backward")
        pooled = pool(source, *window)
        trained = source.detach().requires_grad_()
        return {
            "forward_inference": lambda: pool(source, *window),
            "forward_training": torch.enable_grad()(lambda: pool(trained, *window)),
            "backward_data": lambda: pool_backward(gradient, pooled, source, *window),
            "backward": lambda: pool_backward(gradient, pooled, source, *window),
        }
    with_padding = algorithm != "pooling_avg_exclude_padding"
    pool = getattr(aten, f"avg_pool{number}d")
    pool_backward = getattr(aten, f"avg_pool{number}d_backward")
    more = (False, with_padding)
    return {
        "forward_training": lambda: pool(source, *window, *more),
        "forward_inference": lambda: pool(source, *window, *more),
        "backward_data": lambda: pool_backward(gradient, source, *window, *more, None),
        "backward": lambda: pool_backward(gradient, source, *window, *more, None),
    }
