"""Convolutions through torch, and what all its operators share: tensors, types, refusals.

Tensors have a problem's types and layouts and random values. A problem that torch cannot hand to
oneDNN raises NotReachedError; inference takes what torch's compiler fuses into a convolution or a
linear layer (`FUSED`, by oneDNN's names).
"""

from collections.abc import Callable, Sequence
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

Run = Callable[[], object]
"""Runs a problem once."""


def prepare_convolution(problem: Problem) -> Run:
    """Return a convolution, or a transposed one (`deconvolution`).

    Raises:
        NotReachedError: torch has no such call.
    """
    sizes, direction = geometry(problem.shape), problem.direction
    is_transposed = problem.kind == "deconvolution"
    source_memory = require_memory(problem, "src")
    shape = (sizes.channels_out, sizes.channels_in)[:: -1 if is_transposed else 1]
    dtype = type_of(require_memory(problem, "wei"))
    weight = torch.empty(shape[0], shape[1] // sizes.groups, *sizes.kernel, dtype=dtype).normal_()
    # Weights lie as torch stores them beside such an input. Where the library chose the input's
    # layout, torch had given it row by row.
    is_given = "a" not in source_memory.properties
    if is_channels_last(source_memory.tag) and is_given and weight.dim() > 3:
        last = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
        weight = weight.contiguous(memory_format=last)
    bias_memory = problem.memory("bia") or problem.memory("diff_bia")
    source = make_tensor(sizes.src, source_memory)
    bias = None if bias_memory is None else make_tensor((sizes.channels_out,), bias_memory)
    result = make_tensor(sizes.dst, memory_of(problem, "dst") or source_memory)
    if direction == "forward_inference" and not is_transposed:
        return fused_convolution(problem, sizes, source, result, (weight, bias))
    if direction not in ("forward_training", "backward_data", "backward_weights"):
        raise NotReachedError(f"torch does not call {problem.name}")
    require_plain(problem)
    aten = torch.ops.aten
    if direction == "forward_training" and not is_transposed:
        return lambda: aten.mkldnn_convolution(
            source, weight, bias, sizes.padding, sizes.stride, sizes.dilation, sizes.groups
        )
    extra = sizes.output_padding if is_transposed else (0,) * len(sizes.input)
    window = (sizes.stride, sizes.padding, sizes.dilation, is_transposed, extra)
    if direction == "forward_training":
        return lambda: aten.convolution(source, weight, bias, *window, sizes.groups)
    to_data = direction == "backward_data"
    mask = [to_data, not to_data, not to_data and bias is not None]
    bias_sizes = [sizes.channels_out] if mask[2] else None
    return lambda: aten.convolution_backward(
        result, source, weight, bias_sizes, *window, sizes.groups, mask
    )


def fused_convolution(
    problem: Problem,
    sizes: Geometry,
    source: Tensor,
    other: Tensor,
    weights: tuple[Tensor, Tensor | None],
) -> Run:
    """Return the forward pass with what torch's compiler fuses into it.

    `other` is a tensor of the output's sizes, for fused sums and products; `weights` has the bias.
    """
    fused, others = post_ops(problem), other_attributes(problem)
    if others:
        raise NotReachedError(f"torch sets no {' '.join(others)}")
    shared = (*weights, sizes.padding, sizes.stride, sizes.dilation, sizes.groups)
    mkldnn = torch.ops.mkldnn
    name = fused[0].partition(":")[0] if fused else ""
    is_sum = fused[:1] == ("sum",)  # without a factor
    if is_sum or name in BINARIES:
        after = unary_of(fused[1:], only=("eltwise_relu",))
        if is_sum:
            return lambda: mkldnn._convolution_pointwise_.binary(
                other, source, *shared, "add", 1.0, after.name, [], None
            )
        return lambda: mkldnn._convolution_pointwise.binary(
            source, other, *shared, BINARIES[name], 1.0, after.name, [], None
        )
    after = unary_of(fused, only=tuple(FUSED))
    return lambda: mkldnn._convolution_pointwise(
        source, *shared, after.name or "none", list(after.scalars), after.algorithm
    )


BINARIES = {f"binary_{name}": name for name in ("add", "sub", "mul", "div")}
"""torch's names of what is fused with another tensor."""


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
    """Return the one operation that is fused, or none.

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
    """Return the tensor of a role, or of its gradient: `dst` or `diff_dst`."""
    return problem.memory(role) or problem.memory(f"diff_{role}")


def require_memory(problem: Problem, *roles: str) -> MemoryDescriptor:
    """Return the tensor of the first of these roles that the problem has.

    Raises:
        NotReachedError: It has none.
    """
    memory = next(filter(None, (memory_of(problem, role) for role in roles)), None)
    if memory is None:
        raise NotReachedError(f"the log has no {roles[0]} for it")
    return memory


def type_of(memory: MemoryDescriptor) -> torch.dtype:
    """Return torch's type.

    Raises:
        NotReachedError: It is no floating-point type.
    """
    if memory.type not in TYPES:
        raise NotReachedError(f"torch's operators do not give oneDNN {memory.type}")
    return TYPES[memory.type]


def make_tensor(dims: Sequence[int], memory: MemoryDescriptor) -> Tensor:
    """Return a tensor of the descriptor's type and layout.

    Where the library chose the layout (property `a`, or blocks), torch stores it row by row.

    Raises:
        NotReachedError: torch has no such type.
    """
    dtype = type_of(memory)
    if memory.strides:
        strides = [int(stride) for stride in memory.strides.split("x")]
        if len(strides) == len(dims):
            return torch.empty_strided(tuple(dims), strides, dtype=dtype).normal_()
    is_given = is_plain(memory.tag) and "a" not in memory.properties
    order = order_of(memory.tag) if is_given else []
    if len(order) != len(dims):
        order = list(range(len(dims)))
    stored = torch.empty([dims[place] for place in order], dtype=dtype).normal_()
    return stored.permute([order.index(place) for place in range(len(dims))])


def make_opaque(dims: Sequence[int], memory: MemoryDescriptor) -> Tensor:
    """Return a tensor of oneDNN's own kind, for which torch calls oneDNN wherever it has a choice.

    Raises:
        NotReachedError: torch has no such type, or oneDNN's tensors come in another layout.
    """
    if is_plain(memory.tag) and memory.tag != "".join(sorted(memory.tag)):
        raise NotReachedError(f"torch's oneDNN tensors are stored row by row, not as {memory.tag}")
    return torch.empty(tuple(dims), dtype=type_of(memory)).normal_().to_mkldnn()


class NotReachedError(LookupError):
    """torch has no call for a problem; the message says why, in one line."""


def require_plain(problem: Problem) -> None:
    """Refuse a problem with fused operations or attributes.

    Raises:
        NotReachedError: It has some.
    """
    fused = (*post_ops(problem), *other_attributes(problem))
    if fused:
        raise NotReachedError(f"torch does not fuse {' '.join(fused)} into {problem.name}")
