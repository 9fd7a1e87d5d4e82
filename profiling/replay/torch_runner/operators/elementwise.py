"""What touches each number once: activations, sums and products, softmax; on oneDNN's tensors."""

from collections.abc import Callable

import torch
from torch import Tensor

from profiling.onednn_log.dimensions import listed_sizes
from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.operators.reaching import (
    NotReachedError,
    Run,
    name_of,
    require_plain,
)
from profiling.replay.torch_runner.operators.tensors import make_opaque, require_memory, type_of

ACTIVATIONS: dict[str, Callable[[Tensor], object]] = {
    "eltwise_relu": torch.relu,
    "eltwise_logistic": torch.sigmoid,
    "eltwise_tanh": torch.tanh,
    "eltwise_gelu_erf": torch.nn.functional.gelu,
    "eltwise_gelu_tanh": lambda data: torch.nn.functional.gelu(data, approximate="tanh"),
}
BACKWARD: dict[str, Callable[[Tensor, Tensor], object]] = {
    "eltwise_relu": lambda gradient, data: torch.ops.aten.threshold_backward(gradient, data, 0),
    "eltwise_gelu_erf": torch.ops.aten.gelu_backward,
    "eltwise_gelu_tanh": lambda gradient, data: torch.ops.aten.gelu_backward(
        gradient, data, approximate="tanh"
    ),
}
BINARY: dict[str, Callable[[Tensor, Tensor], object]] = {"binary_mul": torch.mul}


def prepare_eltwise(problem: Problem) -> Run:
    """An activation, forward or backward.

    Raises:
        NotReachedError: torch computes it itself.
    """
    require_plain(problem)
    (dims,) = listed_sizes(problem.shape)
    memory = require_memory(problem, "src", "data")
    if problem.direction.startswith("forward") and problem.algorithm in ACTIVATIONS:
        data = make_opaque(dims, memory)
        return lambda: ACTIVATIONS[problem.algorithm](data)
    if problem.direction == "backward_data" and problem.algorithm in BACKWARD:
        data, gradient = make_opaque(dims, memory), make_opaque(dims, memory)
        return lambda: BACKWARD[problem.algorithm](gradient, data)
    raise NotReachedError(f"torch computes {problem.algorithm} {problem.direction} itself")


def prepare_prelu(problem: Problem) -> Run:
    """A leaky activation whose slopes are learned, forward.

    Raises:
        NotReachedError: It is backward.
    """
    require_plain(problem)
    if not problem.direction.startswith("forward"):
        raise NotReachedError(f"torch computes {name_of(problem)} itself")
    dims, slopes = listed_sizes(problem.shape)
    data = make_opaque(dims, require_memory(problem, "src", "data"))
    weight = torch.rand(max(slopes), dtype=type_of(require_memory(problem, "wei")))
    return lambda: torch.prelu(data, weight)


def prepare_softmax(problem: Problem) -> Run:
    """Softmax, forward.

    Raises:
        NotReachedError: torch computes it itself.
    """
    require_plain(problem)
    axis = next((word[5:] for word in problem.auxiliary.split() if word.startswith("axis:")), "1")
    if not problem.direction.startswith("forward") or problem.algorithm == "softmax_log":
        raise NotReachedError(f"torch computes {name_of(problem)} {problem.algorithm} itself")
    data = make_opaque(listed_sizes(problem.shape)[0], require_memory(problem, "src", "data"))
    return lambda: torch.softmax(data, int(axis))


def prepare_binary(problem: Problem) -> Run:
    """The product of two tensors.

    Raises:
        NotReachedError: torch computes it itself.
    """
    require_plain(problem)
    if problem.algorithm not in BINARY:
        raise NotReachedError(f"torch computes {problem.algorithm} itself")
    first, second, *_ = listed_sizes(problem.shape)
    memory = require_memory(problem, "src", "src0")
    one, other = make_opaque(first, memory), make_opaque(second, memory)
    return lambda: BINARY[problem.algorithm](one, other)


def prepare_sum(problem: Problem) -> Run:
    """The sum of two tensors.

    Raises:
        NotReachedError: There are more than two.
    """
    require_plain(problem)
    sources = [one for one in problem.memories if one.role.startswith("src")]
    if len(sources) != 2:
        raise NotReachedError(f"torch adds two tensors at a time, not {len(sources)}")
    dims = listed_sizes(problem.shape)[0]
    one, other = make_opaque(dims, sources[0]), make_opaque(dims, sources[1])
    return lambda: torch.add(one, other)
