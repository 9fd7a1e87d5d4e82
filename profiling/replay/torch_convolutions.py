"""Convolutions and transposed convolutions, forward and backward.

TODO-DOC What torch's compiler fuses into a convolution or a linear layer, by oneDNN's names.

TODO-DOC Tensors of a problem's types and layouts, filled with random numbers.

TODO-DOC What the modules of this folder share: how a problem that torch cannot run is told.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from profiling.onednn_log.work import MemoryDescriptor, Problem
from profiling.replay.replay import (
    Geometry,
    geometry,
    is_channels_last,
    is_plain,
    order_of,
    other_attributes,
    post_ops,
)


@dataclass(frozen=True)
class Operands:
    """What all directions take."""

    geometry: Geometry
    source: Tensor
    weight: Tensor
    bias: Tensor | None
    gradient: Tensor
    """Of the output's dimensions."""
    transposed: bool

    @property
    def output_padding(self) -> tuple[int, ...]:
        """What a transposed convolution adds to its smallest possible output."""
        sizes = self.geometry
        if not self.transposed:
            return (0,) * len(sizes.input)
        return tuple(
            output - ((given - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)
            for given, output, kernel, stride, dilation, padding in zip(
                sizes.input,
                sizes.output,
                sizes.kernel,
                sizes.stride,
                sizes.dilation,
                sizes.padding,
                strict=True,
            )
        )


Run = Callable[[], object]
"""Does a problem's work once."""


def prepare_convolution(problem: Problem) -> Run:
    """A convolution, or a transposed one (`deconvolution`).

    Raises:
        NotReachedError: torch has no such call.
    """
    operands = make_operands(problem)
    if problem.direction == "forward_training":
        require_plain(problem)
        return forward(operands)
    if problem.direction == "forward_inference" and not operands.transposed:
        return inference(problem, operands)
    if problem.direction in ("backward_data", "backward_weights"):
        require_plain(problem)
        return backward(problem, operands)
    raise NotReachedError(f"torch does not call {name_of(problem)}")


def make_operands(problem: Problem) -> Operands:
    """Tensors as the log has them; weights are stored as torch stores them beside such an input."""
    sizes = geometry(problem.shape)
    source_memory = require_memory(problem, "src")
    weight_memory = require_memory(problem, "wei")
    transposed = problem.kind == "deconvolution"
    first, second = sizes.channels_out, sizes.channels_in
    if transposed:
        first, second = second, first
    weight = torch.empty(first, second // sizes.groups, *sizes.kernel, dtype=type_of(weight_memory))
    weight.normal_()
    # Where the library chose the input's layout, torch had given it row by row.
    given = is_channels_last(source_memory.tag) and "a" not in source_memory.properties
    if given and weight.dim() > 3:
        last = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
        weight = weight.contiguous(memory_format=last)
    bias = problem.memory("bia") or problem.memory("diff_bia")
    return Operands(
        geometry=sizes,
        source=make_tensor(sizes.src, source_memory),
        weight=weight,
        bias=None if bias is None else make_tensor((sizes.channels_out,), bias),
        gradient=make_tensor(sizes.dst, memory_of(problem, "dst") or source_memory),
        transposed=transposed,
    )


def forward(of: Operands) -> Run:
    """Forward, as in training; torch asks for it in evaluation too."""
    sizes = of.geometry
    if not of.transposed:
        return lambda: torch.ops.aten.mkldnn_convolution(
            of.source, of.weight, of.bias, sizes.padding, sizes.stride, sizes.dilation, sizes.groups
        )
    return lambda: torch.ops.aten.convolution(
        of.source,
        of.weight,
        of.bias,
        sizes.stride,
        sizes.padding,
        sizes.dilation,
        True,
        of.output_padding,
        sizes.groups,
    )


def backward(problem: Problem, of: Operands) -> Run:
    """The gradient to the input, or to weights and bias."""
    sizes = of.geometry
    to_data = problem.direction == "backward_data"
    mask = [to_data, not to_data, not to_data and of.bias is not None]
    return lambda: torch.ops.aten.convolution_backward(
        of.gradient,
        of.source,
        of.weight,
        [sizes.channels_out] if mask[2] else None,
        sizes.stride,
        sizes.padding,
        sizes.dilation,
        of.transposed,
        of.output_padding,
        sizes.groups,
        mask,
    )


def inference(problem: Problem, of: Operands) -> Run:
    """Forward with what torch's compiler fuses into it.

    Raises:
        NotReachedError: It fuses no such thing.
    """
    fused = post_ops(problem)
    if other_attributes(problem):
        raise NotReachedError(f"torch sets no {' '.join(other_attributes(problem))}")
    sizes = of.geometry
    shared = (of.weight, of.bias, sizes.padding, sizes.stride, sizes.dilation, sizes.groups)
    if fused[:1] == ("sum",):
        after = unary_of(fused[1:], only=("eltwise_relu",))
        return lambda: torch.ops.mkldnn._convolution_pointwise_.binary(
            of.gradient, of.source, *shared, "add", 1.0, after.name, [], None
        )
    for name in ("add", "sub", "mul", "div"):
        if fused and fused[0].startswith(f"binary_{name}:"):
            after = unary_of(fused[1:], only=("eltwise_relu",))
            return lambda: torch.ops.mkldnn._convolution_pointwise.binary(
                of.source, of.gradient, *shared, name, 1.0, after.name, [], None
            )
    after = unary_of(fused, only=tuple(FUSED))
    return lambda: torch.ops.mkldnn._convolution_pointwise(
        of.source, *shared, after.name or "none", list(after.scalars), after.algorithm
    )


class Unary(NamedTuple):
    """Arguments of torch's fused operators."""

    name: str | None
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


FUSED = {
    "eltwise_relu": Unary("relu"),
    "eltwise_logistic": Unary("sigmoid"),
    "eltwise_tanh": Unary("tanh"),
    "eltwise_hardswish": Unary("hardswish"),
    "eltwise_swish": Unary("swish"),
    "eltwise_gelu_erf": Unary("gelu", (), "none"),
    "eltwise_gelu_tanh": Unary("gelu", (), "tanh"),
}


def unary_of(fused: Sequence[str], *, only: Sequence[str]) -> Unary:
    """The one operation that is fused, or none.

    Raises:
        NotReachedError: It is not among `only`, or there are several.
    """
    if not fused:
        return Unary(None)
    name, *numbers = fused[0].split(":")
    if len(fused) > 1 or name not in only:
        raise NotReachedError(f"torch does not fuse {'+'.join(fused)}")
    if name == "eltwise_relu" and numbers and float(numbers[0]) != 0:
        return Unary("leaky_relu", (float(numbers[0]),))
    return FUSED[name]


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
