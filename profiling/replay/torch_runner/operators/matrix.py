"""Matrix products: `matmul` and `inner_product`."""

from collections.abc import Callable

import torch
from torch import Tensor

from profiling.onednn_log.dimensions import listed_sizes, named_sizes
from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.attributes import other_attributes, post_ops
from profiling.replay.torch_runner.geometry import geometry
from profiling.replay.torch_runner.operators.fused import FUSED, unary_of
from profiling.replay.torch_runner.operators.reaching import (
    NotReachedError,
    Run,
    name_of,
    require_plain,
)
from profiling.replay.torch_runner.operators.tensors import (
    make_opaque,
    make_tensor,
    memory_of,
    require_memory,
)

LESS_PRECISE = {"attr-fpmath:bf16": "medium"}
"""oneDNN's permission to compute float32 in bfloat16, and torch's."""
SCALED = ("attr-scales:src0:0", "attr-oscale:0")
"""torch's factor on a product; the log does not tell it."""
OTHER_THAN_1 = 0.5


def prepare_matmul(problem: Problem) -> Run:
    """The product of two matrices, or of batches of them; `sum` adds it to what is there.

    Raises:
        NotReachedError: torch gives such a product to another library, or does not fuse that.
    """
    left_memory, right_memory = require_memory(problem, "src"), require_memory(problem, "wei")
    others = other_attributes(problem)
    precision = [LESS_PRECISE[one] for one in others if one in LESS_PRECISE]
    scales = [one for one in others if one.startswith(SCALED)]
    if len(precision) + len(scales) < len(others) or len(scales) > 1:
        raise NotReachedError(f"torch sets no {' '.join(others)}")
    if left_memory.type == "f32" and not precision:
        raise NotReachedError("torch gives float32 products to another library")
    if problem.memory("bia") is not None:
        raise NotReachedError("torch adds a matmul's bias beforehand")
    left_dims, right_dims = listed_sizes(problem.shape)[:2]  # oneDNN 2 has the product's too
    if not 2 <= len(left_dims) <= 3:
        raise NotReachedError(f"torch asks for products of 2 or 3 dimensions, not {len(left_dims)}")
    left, right = make_tensor(left_dims, left_memory), make_tensor(right_dims, right_memory)
    run = product(left, right, fused=post_ops(problem), is_scaled=bool(scales))
    return with_precision(precision[0], run) if precision else run


def product(left: Tensor, right: Tensor, *, fused: tuple[str, ...], is_scaled: bool) -> Run:
    """The call for a product, plain or added to something."""
    is_vector = left.dim() == 2 and right.shape[1] == 1  # of which `mm` makes its transpose
    if not fused and not is_scaled:
        if is_vector:
            return lambda: torch.mv(left, right[:, 0])
        return (lambda: torch.bmm(left, right)) if left.dim() == 3 else lambda: left @ right
    name, *factor = fused[0].split(":") if fused else ("nothing",)
    if len(fused) != 1 or name != "sum":
        raise NotReachedError(f"torch does not fuse {'+'.join(fused)} into a matmul")
    beta, alpha = float(factor[0]) if factor else 1.0, OTHER_THAN_1 if is_scaled else 1.0
    added = torch.empty(*left.shape[:-1], right.shape[-1], dtype=left.dtype).normal_()
    if is_vector:
        return lambda: torch.addmv(added[:, 0], left, right[:, 0], beta=beta, alpha=alpha)
    add = torch.baddbmm if left.dim() == 3 else torch.addmm
    return lambda: add(added, left, right, beta=beta, alpha=alpha)


def with_precision(precision: str, run: Run) -> Run:
    """The same while float32 products may be less precise."""

    def run_so() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            run()
        finally:
            torch.set_float32_matmul_precision(before)

    return run_so


def prepare_inner_product(problem: Problem) -> Run:
    """A linear layer, [mb, ic] × [oc, ic]ᵀ, forward or backward.

    Raises:
        NotReachedError: torch does not call it so.
    """
    if any(name in named_sizes(problem.shape) for name in ("id", "ih", "iw")):
        raise NotReachedError("torch flattens what goes into a linear layer")
    found = geometry(problem.shape)
    weight = make_row_major(found.channels_out, found.channels_in, problem, "wei")
    bias = problem.memory("bia") or problem.memory("diff_bia")
    bias_tensor = None if bias is None else make_tensor((found.channels_out,), bias)
    source, result = require_memory(problem, "src"), memory_of(problem, "dst")
    if problem.direction == "forward_inference":
        after = unary_of(post_ops(problem), only=tuple(FUSED))
        data = make_tensor(found.src, source)
        return lambda: torch.ops.mkldnn._linear_pointwise(
            data, weight, bias_tensor, after.name or "none", list(after.scalars), after.algorithm
        )
    require_plain(problem)
    data, gradient = make_opaque(found.src, source), make_opaque(found.dst, result or source)
    calls: dict[str, Callable[[], object]] = {
        "forward_training": lambda: torch.ops.aten.mkldnn_linear(data, weight, bias_tensor),
        "backward_data": lambda: torch.ops.aten.mkldnn_linear_backward_input(
            list(found.src), gradient, weight
        ),
        "backward_weights": lambda: torch.ops.aten.mkldnn_linear_backward_weights(
            gradient, data, weight, bias is not None
        ),
    }
    if problem.direction not in calls:
        raise NotReachedError(f"torch does not call {name_of(problem)}")
    return calls[problem.direction]


def make_row_major(rows: int, columns: int, problem: Problem, role: str) -> Tensor:
    """A weight as torch stores it, whatever the library makes of it."""
    memory = require_memory(problem, role)
    return make_tensor((columns, rows), memory).reshape(rows, columns).contiguous()
