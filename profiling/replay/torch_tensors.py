"""Tensors of a problem's types and layouts, filled with random numbers.

TODO-DOC What the modules of this folder share: how a problem that torch cannot run is told.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from profiling.onednn_log.problem import MemoryDescriptor, Problem
from profiling.replay.same_problem import is_plain, order_of, other_attributes, post_ops

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def memory_of(problem: Problem, role: str) -> MemoryDescriptor | None:
    """The tensor of a role, or of its gradient: `dst` or `diff_dst`."""
    return problem.memory(role) or problem.memory(f"diff_{role}")


def require_memory(problem: Problem, *roles: str) -> MemoryDescriptor:
    """The first of the roles that is there.

    Raises:
        NotReachedError: None is.
    """
    for role in roles:
        found = memory_of(problem, role)
        if found is not None:
            return found
    raise NotReachedError(f"the log has no {roles[0]} for it")


def type_of(memory: MemoryDescriptor) -> torch.dtype:
    """torch's name of a type.

    Raises:
        NotReachedError: Its operators reach oneDNN with floating-point numbers only.
    """
    try:
        return TYPES[memory.type]
    except KeyError:
        raise NotReachedError(f"torch's operators do not give oneDNN {memory.type}") from None


def make_tensor(dims: Sequence[int], memory: MemoryDescriptor) -> Tensor:
    """A tensor of the descriptor's type and layout.

    What the library laid out (property `a`, or blocks) is made row by row: torch lets it choose.

    Raises:
        NotReachedError: torch has no such type.
    """
    dtype = type_of(memory)
    if memory.strides:
        strides = [int(stride) for stride in memory.strides.split("x")]
        if len(strides) == len(dims):
            return torch.empty_strided(tuple(dims), strides, dtype=dtype).normal_()
    is_given = is_plain(memory.tag) and "a" not in memory.properties
    order = order_of(memory.tag) if is_given else list(range(len(dims)))
    if len(order) != len(dims):
        order = list(range(len(dims)))
    stored = torch.empty([dims[place] for place in order], dtype=dtype).normal_()
    return stored.permute([order.index(place) for place in range(len(dims))])


def make_opaque(dims: Sequence[int], memory: MemoryDescriptor) -> Tensor:
    """The same as oneDNN's own kind of tensor, on which torch runs oneDNN where it has a choice.

    Raises:
        NotReachedError: torch has no such type, or oneDNN's tensors come in another layout.
    """
    if is_plain(memory.tag) and memory.tag != "".join(sorted(memory.tag)):
        raise NotReachedError(f"torch's oneDNN tensors are stored row by row, not as {memory.tag}")
    return torch.empty(tuple(dims), dtype=type_of(memory)).normal_().to_mkldnn()


Run = Callable[[], object]
"""Does a problem's work once."""


class NotReachedError(LookupError):
    """torch has no call for a problem; the message says why, in one line."""


def require_plain(problem: Problem) -> None:
    """Refuse a problem into which something is fused.

    Raises:
        NotReachedError: Names it.
    """
    fused = (*post_ops(problem), *other_attributes(problem))
    if fused:
        raise NotReachedError(f"torch does not fuse {' '.join(fused)} into {name_of(problem)}")


def name_of(problem: Problem) -> str:
    """Kind and direction: `convolution forward_training`."""
    direction = "" if problem.direction == "undef" else f" {problem.direction}"
    return problem.kind + direction
