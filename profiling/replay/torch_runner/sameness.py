"""Whether two lines of logs are the same work, whatever version of oneDNN wrote them."""

import re
from collections.abc import Hashable
from typing import NamedTuple

from profiling.onednn_log.dimensions import listed_sizes
from profiling.onednn_log.memory_descriptor import MemoryDescriptor
from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.attributes import other_attributes, post_ops
from profiling.replay.torch_runner.layouts import is_channels_last, is_plain, same_order

HEIGHT_OF_ONE = re.compile(r"_ih1oh1kh1sh1dh0ph0(?=_iw)")
"""A convolution along a line is one over a picture of height 1; torch makes it so."""
WRITTEN_BY_LIBRARY = ("ws", "scratchpad", "workspace")
WITHOUT_RESULT = ("eltwise", "softmax", "batch_normalization", "layer_normalization", "lrn")
"""Kinds of which some versions log one tensor for data and result."""


class Work(NamedTuple):
    """What is equal for two lines of the same work."""

    kind: str
    direction: str
    shape: str
    types: frozenset[tuple[str, str]]
    fused: tuple[str, ...]
    details: Hashable


def work_of(problem: Problem) -> Work:
    """Everything but the implementation and the layouts, of which `same_layouts` tells.

    Implementations are called otherwise in each version, and the library chooses them.
    """
    return Work(
        kind=problem.kind,
        direction=problem.direction,
        shape=plain_shape(problem),
        types=types_of(problem),
        fused=(*post_ops(problem), *other_attributes(problem)),
        details=details_of(problem),
    )


def plain_shape(problem: Problem) -> str:
    """The shape without what only some versions write."""
    if problem.kind == "matmul":
        return ":".join(problem.shape.split(":")[:2])
    return HEIGHT_OF_ONE.sub("", problem.shape)


def types_of(problem: Problem) -> frozenset[tuple[str, str]]:
    """Types by role; `data` and gradients are called as their tensors are."""
    found = set()
    for memory in problem.memories:
        role = role_of(memory)
        if not memory.is_there or role in WRITTEN_BY_LIBRARY:
            continue
        if role == "dst" and problem.kind in WITHOUT_RESULT:
            continue
        found.add((role, memory.type))
    return frozenset(found)


def role_of(memory: MemoryDescriptor) -> str:
    """`diff_src`, `data` and `src0` are `src`."""
    role = re.sub(r"\d+$", "", memory.role.removeprefix("diff_"))
    return {"data": "src", "bias": "bia"}.get(role, role)


def details_of(problem: Problem) -> Hashable:
    """What the auxiliary field tells of the work, as far as it changes it."""
    words = dict(word.split(":", 1) for word in problem.auxiliary.split() if ":" in word)
    algorithm = words.get("alg", "")
    if problem.kind in ("convolution", "deconvolution"):
        algorithm = "winograd" if "winograd" in algorithm else ""
    flags = set(words.get("flags", "").replace("S", "CH"))
    return (algorithm, words.get("axis", ""), words.get("direction", ""), frozenset(flags))


def same_layouts(asked: Problem, found: Problem) -> bool:
    """Whether tensors lie in memory alike, as far as torch and not the library decides it.

    A reorder is its two layouts, and a product runs along its operands' rows or columns. Of all
    others, pixels must come channel by channel in both or in neither: blocks, and how weights lie,
    are the library's choice, which its versions make otherwise.
    """
    exact = asked.kind in ("reorder", "matmul")
    for one in asked.memories:
        other = next((memory for memory in found.memories if memory.role == one.role), None)
        if other is None or not (one.is_there and other.is_there):
            continue
        if exact and not same_layout(asked, one, other):
            return False
        is_image = role_of(one) in ("src", "dst")
        if not exact and is_image and is_channels_last(one.tag) != is_channels_last(other.tag):
            return False
    return True


def same_layout(problem: Problem, one: MemoryDescriptor, other: MemoryDescriptor) -> bool:
    """Whether two descriptions of a problem's tensor are one layout."""
    if (one.kind, one.strides) != (other.kind, other.strides):
        return False
    if is_plain(one.tag) and is_plain(other.tag):
        dims = dims_of(problem, one.role)
        return one.tag == other.tag or (bool(dims) and same_order(one.tag, other.tag, dims))
    return one.tag == other.tag


def dims_of(problem: Problem, role: str) -> tuple[int, ...]:
    """Dimensions of a reorder's or a product's tensor; none where the shape is not understood."""
    try:
        listed = listed_sizes(plain_shape(problem))
    except ValueError:
        return ()
    if problem.kind == "reorder":
        return listed[0]
    places = {"src": 0, "wei": 1}
    if role in places and len(listed) > 1:
        return listed[places[role]]
    return (*listed[0][:-1], listed[-1][-1]) if role == "dst" else ()


def difference(asked: Problem, found: Problem) -> str:
    """In a few words, why `found` is not the work that was asked for."""
    wanted, came = work_of(asked), work_of(found)
    if wanted.shape != came.shape:
        return f"torch made it {found.shape}"
    if wanted.types != came.types:
        return f"torch made it {found.types}"
    if wanted.direction != came.direction:
        return f"torch made it {found.direction}"
    if wanted.fused != came.fused:
        return f"torch made it with {' '.join(came.fused) or 'nothing fused'}"
    if wanted.details != came.details:
        return f"torch made it {found.auxiliary or 'plain'}"
    return f"torch made it with layouts {found.layouts}"
