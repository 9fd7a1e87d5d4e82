"""Bytes of a problem's tensors, each once; see `profiling.onednn_log.work`.

Each function raises ValueError, KeyError or IndexError where the shape is not as it is known.
"""

from collections.abc import Callable
from math import prod

from profiling.onednn_log.dimensions import (
    Dimensions,
    elements,
    listed_sizes,
    named_sizes,
    product_sizes,
)
from profiling.onednn_log.problem import Problem

BYTES = {
    "f64": 8.0,
    "s64": 8.0,
    "f32": 4.0,
    "tf32": 4.0,
    "s32": 4.0,
    "bf16": 2.0,
    "f16": 2.0,
    "f4_e2m1": 0.5,
    "f4_e3m0": 0.5,
    "s4": 0.5,
    "u4": 0.5,
    "undef": 0.0,
}
"""Of one number; those not named here have one byte."""

NOT_COUNTED = ("rnn", "sdpa")
"""Kinds whose shape does not give their tensors' sizes."""


def _sum_of(problem: Problem, sizes: dict[str, float]) -> float:
    """Bytes of the tensors that are there, from their numbers of elements by role."""
    return sum(sizes.get(one.role, 0.0) * BYTES.get(one.type, 1.0) for one in problem.memories)


def _convolution_bytes(problem: Problem) -> float:
    sizes = named_sizes(problem.shape)
    window = prod(sizes.get("k" + axis, 1) for axis in "dhw")
    source = prod(sizes.get("i" + axis, 1) for axis in "dhw")
    target = prod(sizes.get("o" + axis, 1) for axis in "dhw")
    elements_of: dict[str, float] = {
        "src": sizes["mb"] * sizes["ic"] * source,
        "wei": sizes["oc"] * sizes["ic"] * window / sizes.get("g", 1),
        "bia": sizes["oc"],
        "dst": sizes["mb"] * sizes["oc"] * target,
    }
    return _sum_of(problem, elements_of)


def _product_bytes(problem: Problem) -> float:
    batch, rows, columns, inner = product_sizes(problem.shape)
    weights = inner * columns * (batch if not problem.shape[:1].isdigit() else 1)
    if problem.shape[:1].isdigit():
        weights = prod(listed_sizes(problem.shape)[1])
    elements_of: dict[str, float] = {
        "src": batch * rows * inner,
        "wei": weights,
        "bia": columns,
        "dst": batch * rows * columns,
    }
    return _sum_of(problem, elements_of)


def _inner_product_bytes(problem: Problem) -> float:
    sizes = named_sizes(problem.shape)
    inner = prod(sizes.get(name, 1) for name in ("ic", "id", "ih", "iw"))
    elements_of: dict[str, float] = {
        "src": sizes["mb"] * inner,
        "wei": sizes["oc"] * inner,
        "bia": sizes["oc"],
        "dst": sizes["mb"] * sizes["oc"],
    }
    return _sum_of(problem, elements_of)


def _window_bytes(problem: Problem) -> float:
    """Pooling and resampling: as many channels on both sides."""
    sizes = named_sizes(problem.shape)
    each = sizes["mb"] * sizes["ic"]
    source = each * prod(sizes.get("i" + axis, 1) for axis in "dhw")
    target = each * prod(sizes.get("o" + axis, 1) for axis in "dhw")
    return _sum_of(problem, {"src": source, "dst": target, "ws": target})


def _listed_bytes(problem: Problem) -> float:
    """A shape for each source, and the result as large as all or as the largest of them."""
    shapes = listed_sizes(problem.shape)
    if problem.kind == "reduction":
        return _sum_of(problem, {"src": prod(shapes[0]), "dst": prod(shapes[1])})
    target = _broadcast(shapes)
    if problem.kind == "concat":
        target = sum(map(prod, shapes))
    sources = [one for one in problem.memories if one.role != "dst"]
    read = sum(
        prod(shape) * BYTES.get(one.type, 1.0) for one, shape in zip(sources, shapes, strict=False)
    )
    return read + _sum_of(problem, {"dst": target})


def _broadcast(shapes: list[Dimensions]) -> int:
    return prod(max(sizes) for sizes in zip(*shapes, strict=True))


def alike(problem: Problem) -> float:
    """All tensors have the shape of the first. `data` is read, and written by another name."""
    each = elements(problem.shape.partition(":")[0])
    passed = [one for one in problem.memories if one.role not in ("stats", "ws")]
    total = sum(each * BYTES.get(one.type, 1.0) for one in passed)
    data = problem.memory("data")
    return total + (each * BYTES.get(data.type, 1.0) if data else 0.0)


TENSOR_BYTES: dict[str, Callable[[Problem], float]] = {
    "convolution": _convolution_bytes,
    "deconvolution": _convolution_bytes,
    "matmul": _product_bytes,
    "gemm": _product_bytes,
    "gemm_api": _product_bytes,
    "brgemm": _product_bytes,
    "inner_product": _inner_product_bytes,
    "pooling": _window_bytes,
    "resampling": _window_bytes,
    "binary": _listed_bytes,
    "concat": _listed_bytes,
    "reduction": _listed_bytes,
}
