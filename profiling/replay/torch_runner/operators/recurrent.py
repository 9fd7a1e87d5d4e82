"""Recurrent layers."""

import torch

from profiling.onednn_log.dimensions import named_sizes
from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.operators.reaching import (
    NotReachedError,
    Run,
    name_of,
    require_plain,
)
from profiling.replay.torch_runner.operators.tensors import require_memory, type_of


def prepare_rnn(problem: Problem) -> Run:
    """One layer of a long short-term memory, in one direction.

    Raises:
        NotReachedError: It is another cell, or backward, which torch runs with what forward left.
    """
    require_plain(problem)
    sizes = named_sizes(problem.shape)
    one_way = "direction:unidirectional_left2right" in problem.auxiliary
    if problem.algorithm != "vanilla_lstm" or not one_way or sizes.get("l", 1) != 1:
        raise NotReachedError("torch gives oneDNN one layer of an LSTM at a time, left to right")
    if problem.direction not in ("forward_training", "forward_inference", "backward"):
        raise NotReachedError(f"torch does not call {name_of(problem)}")
    dtype = type_of(require_memory(problem, "src_layer"))
    cell = torch.nn.LSTM(sizes["slc"], sizes["dhc"], dtype=dtype)
    given = torch.randn(sizes["t"], sizes["mb"], sizes["slc"], dtype=dtype)
    if problem.direction == "forward_inference":
        return lambda: cell(given)
    if problem.direction == "forward_training":
        return torch.enable_grad()(lambda: cell(given))

    def forward_and_backward() -> None:
        with torch.enable_grad():
            outputs, _ = cell(given)
            outputs.backward(torch.ones_like(outputs))

    return forward_and_backward
