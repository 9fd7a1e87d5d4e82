"""Whether two lines of logs are the same work, whatever version of oneDNN wrote them.

TODO-DOC What is fused into a primitive, as its attributes tell.

TODO-DOC Sizes of what slides a window: `g32mb2_ic256oc256_ih200oh100kh3sh2dh0ph1_iw200ow100…`.

TODO-DOC Layouts as oneDNN's tags tell them: letters are dimensions, outermost first.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from profiling.onednn_log.problem import MemoryDescriptor, Problem
from profiling.onednn_log.work import listed_sizes, named_sizes

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


POST_OPS = "attr-post-ops:"
OF_NO_WEIGHT = ("attr-scratchpad:",)
"""Attributes that change nothing of the work."""


def post_ops(problem: Problem) -> tuple[str, ...]:
    """Fused operations in their order: `("sum", "eltwise_relu")`."""
    for word in problem.attributes.split():
        if word.startswith(POST_OPS):
            listed = word.removeprefix(POST_OPS).strip("'\"").replace(";", "+").strip("+")
            return tuple(listed.split("+"))
    return ()


def other_attributes(problem: Problem) -> tuple[str, ...]:
    """Scales, zero points, the arithmetic's precision: all but post-ops, in alphabetical order."""
    kept = (
        word.strip("'\"") for word in problem.attributes.split() if not word.startswith(POST_OPS)
    )
    return tuple(sorted(word for word in kept if not word.startswith(OF_NO_WEIGHT)))


@dataclass(frozen=True)
class Geometry:
    """Sizes of a convolution, deconvolution or pooling; one number for each spatial dimension."""

    groups: int
    batch: int
    channels_in: int
    channels_out: int
    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    """As torch counts: 1 where the kernel's points are neighbours."""
    padding: tuple[int, ...]
    """Before the first pixel; oneDNN derives the other side's from the output's size."""

    @property
    def src(self) -> tuple[int, ...]:
        """Dimensions of the input."""
        return (self.batch, self.channels_in, *self.input)

    @property
    def dst(self) -> tuple[int, ...]:
        """Dimensions of the output."""
        return (self.batch, self.channels_out, *self.output)


def geometry(shape: str) -> Geometry:
    """Read a description.

    Raises:
        ValueError: It lacks a size.
    """
    found = named_sizes(shape)
    spatial = [letter for letter in "dhw" if f"i{letter}" in found]

    def each(name: str, default: int | None = None) -> tuple[int, ...]:
        return tuple(
            found[name + letter] if default is None else found.get(name + letter, default)
            for letter in spatial
        )

    try:
        return Geometry(
            groups=found.get("g", 1),
            batch=found["mb"],
            channels_in=found["ic"],
            channels_out=found.get("oc", found["ic"]),
            input=each("i"),
            output=each("o"),
            kernel=each("k"),
            stride=each("s", 1),
            dilation=tuple(one + 1 for one in each("d", 0)),
            padding=each("p", 0),
        )
    except KeyError as error:
        raise ValueError(f"no {error.args[0]} in the shape {shape}") from error


def is_plain(tag: str) -> bool:
    """Whether nothing is blocked: `acdb` is plain, `aBcd16b` is not."""
    return bool(tag) and tag.isalpha() and tag.islower()


def order_of(tag: str) -> list[int]:
    """Dimensions from the outermost to the innermost: `acdb` is [0, 2, 3, 1]."""
    return [ord(letter) - ord("a") for letter in tag]


def is_channels_last(tag: str) -> bool:
    """Whether the second dimension is the innermost: `acb`, `acdb`, `acdeb`."""
    return tag in ("acb", "acdb", "acdeb")


def same_order(tag: str, other: str, dims: Sequence[int]) -> bool:
    """Whether two plain tags are the same for a tensor of these dimensions.

    A dimension of 1 may stand anywhere: it is never walked along.
    """

    def walked(order: list[int]) -> list[int]:
        return [place for place in order if place >= len(dims) or dims[place] != 1]

    return walked(order_of(tag)) == walked(order_of(other))
