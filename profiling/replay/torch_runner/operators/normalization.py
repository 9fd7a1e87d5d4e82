"""Batch normalization, on oneDNN's own tensors."""

import torch

from profiling.onednn_log.dimensions import named_sizes
from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.operators.reaching import (
    NotReachedError,
    Run,
    name_of,
    require_plain,
)
from profiling.replay.torch_runner.operators.tensors import make_opaque, require_memory

EPSILON, MOMENTUM = 1e-5, 0.1


def prepare_batch_normalization(problem: Problem) -> Run:
    """Forward with the batch's statistics or with given ones, or backward.

    Raises:
        NotReachedError: torch has no such call.
    """
    require_plain(problem)
    found = named_sizes(problem.shape)
    spatial = [found[f"i{letter}"] for letter in "dhw" if f"i{letter}" in found]
    data = make_opaque((found["mb"], found["ic"], *spatial), require_memory(problem, "src", "data"))
    scale, shift, mean = (torch.randn(found["ic"]) for _ in range(3))
    variance = torch.rand(found["ic"]) + 0.5
    aten = torch.ops.aten
    if problem.direction in ("forward_training", "forward_inference"):
        trains = problem.direction == "forward_training"
        return lambda: aten.native_batch_norm(
            data, scale, shift, mean, variance, trains, MOMENTUM, EPSILON
        )
    if problem.direction == "backward":
        gradient = data.clone()
        kept, deviation = mean.clone(), variance.rsqrt()
        return lambda: aten.native_batch_norm_backward(
            gradient, data, scale, mean, variance, kept, deviation, True, EPSILON, [True] * 3
        )
    raise NotReachedError(f"torch does not call {name_of(problem)}")
