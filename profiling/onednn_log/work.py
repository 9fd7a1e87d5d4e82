"""How much a problem computes, and how much memory it must touch at least.

The arithmetic is that of the direct algorithm, with padding counted as if it were multiplied, as
`profiling.bench.recipes.torchvision` has it; a Winograd implementation does less. It is counted for
what multiplies matrices; all other kinds are bound by memory. Bytes are those of every tensor once:
what would cross the memory bus if nothing stayed in a cache from before and everything needed
twice did.

TODO-DOC Multiplications and additions of a problem, from its shape; see `profiling.onednn_log.work`.

Each function raises ValueError, KeyError or IndexError where the shape is not as it is known.

TODO-DOC Bytes of a problem's tensors, each once; see `profiling.onednn_log.work`.

Each function raises ValueError, KeyError or IndexError where the shape is not as it is known.

TODO-DOC The sizes in a problem's shape, in the spellings of oneDNN's log.

TODO-DOC benchdnn's names of the kinds of primitive.
"""

import re
from collections.abc import Callable
from math import prod

from profiling.onednn_log.problem import Problem


def gflop(problem: Problem) -> float | None:
    """Multiplications and additions [10⁹], or None where they are not counted."""
    count = FLOP.get(problem.kind)
    if count is None or problem.component == "graph":
        return None
    return _known(count, problem)


def gbyte(problem: Problem) -> float | None:
    """The size of all tensors together [10⁹ bytes], or None where the log does not tell."""
    if problem.component == "graph" or problem.kind in NOT_COUNTED:
        return None
    return _known(TENSOR_BYTES.get(problem.kind, alike), problem)


def _known(count: Callable[[Problem], float], problem: Problem) -> float | None:
    """A count in 10⁹, None where the shape is not fixed or not as it is known."""
    try:
        return count(problem) / 1e9
    except (ValueError, KeyError, IndexError, ArithmeticError):  # no groups, endless sizes
        return None


GATES = {"vanilla_rnn": 1, "vanilla_lstm": 4, "vanilla_gru": 3, "lbr_gru": 3}


def _convolution_flop(problem: Problem) -> float:
    sizes = named_sizes(problem.shape)
    # Each weight meets each output of a convolution, and each input of a deconvolution.
    side = "i" if problem.kind == "deconvolution" else "o"
    places = prod(sizes.get(side + axis, 1) for axis in "dhw")
    window = prod(sizes.get("k" + axis, 1) for axis in "dhw")
    channels = sizes["ic"] * sizes["oc"] / sizes.get("g", 1)
    return 2 * sizes["mb"] * channels * places * window


def _product_flop(problem: Problem) -> float:
    batch, rows, columns, inner = product_sizes(problem.shape)
    return 2 * batch * rows * columns * inner * _named_factor(problem.auxiliary, "bs")


def _named_factor(auxiliary: str, name: str) -> int:
    """The number after `name:` in the auxiliary field, 1 where it is not there."""
    values = dict(word.partition(":")[::2] for word in auxiliary.split())
    return int(values.get(name, 1))


def _inner_product_flop(problem: Problem) -> float:
    sizes = named_sizes(problem.shape)
    return 2 * prod(sizes.get(name, 1) for name in ("mb", "ic", "id", "ih", "iw", "oc"))


def _recurrent_flop(problem: Problem) -> float:
    """Products with the layer's and the iteration's weights; backward has two for each."""
    sizes = named_sizes(problem.shape)
    gates = GATES[problem.algorithm]
    directions = 2 if "bidirectional" in problem.auxiliary else 1
    each = 2 * sizes["mb"] * gates * sizes["dhc"] * (sizes["slc"] + sizes["sic"])
    passes = 2 if problem.direction.startswith("backward") else 1
    return each * sizes["l"] * sizes["t"] * directions * passes


def _attention_flop(problem: Problem) -> float:
    """Query by key, then by value."""
    query, key, value = listed_sizes(problem.shape)[:3]
    return 2 * prod(query) * key[-1] + 2 * prod(query[:-1]) * value[-2] * value[-1]


FLOP: dict[str, Callable[[Problem], float]] = {
    "convolution": _convolution_flop,
    "deconvolution": _convolution_flop,
    "matmul": _product_flop,
    "gemm": _product_flop,
    "gemm_api": _product_flop,
    "brgemm": _product_flop,
    "inner_product": _inner_product_flop,
    "rnn": _recurrent_flop,
    "sdpa": _attention_flop,
}

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


Dimensions = tuple[int, ...]


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

NAMED = re.compile(r"([a-z]+)(\d+)")


def named_sizes(shape: str) -> dict[str, int]:
    """`mb2_ic64oc64_ih200oh200kh3…` as names and sizes; `n"…"` and the like are passed over."""
    return {name: int(size) for name, size in NAMED.findall(shape.replace("_", ""))}


def listed_sizes(shape: str) -> list[Dimensions]:
    """`400x256:256x64` as one tuple for each tensor.

    Raises:
        ValueError: A size is unknown until the primitive runs (`*`), or is no number.
    """
    return [tuple(map(int, tensor.split("x"))) for tensor in shape.split(":")]


def elements(shape: str) -> int:
    """Of one tensor, in either spelling: `2x256x100x100`, `mb2ic256ih100iw100`.

    Raises ValueError, see `listed_sizes`.
    """
    if shape.startswith("x"):  # how 2.x and 3.x name the size of a tensor of one dimension
        return int(shape[1:])
    if not re.match(r"(?:g\d+)?mb", shape):
        return prod(listed_sizes(shape)[0])
    named = named_sizes(shape)
    return prod(named.get(name, 1) for name in ("mb", "ic", "id", "ih", "iw"))


def product_sizes(shape: str) -> tuple[int, int, int, int]:
    """Batch, rows, columns and inner size: of `b2m3n4k5` (1.x), or `2x3x5:2x5x4`.

    Raises ValueError, KeyError or IndexError where it is neither.
    """
    if not shape[:1].isdigit():
        sizes = named_sizes(shape)
        return sizes.get("b", sizes.get("mb", 1)), sizes["m"], sizes["n"], sizes["k"]
    left, right = listed_sizes(shape)[:2]
    batch = prod(max(pair) for pair in zip(left[:-2], right[:-2], strict=True))
    return batch, left[-2], right[-1], left[-1]


DRIVERS = {
    "batch_normalization": "bnorm",
    "convolution": "conv",
    "deconvolution": "deconv",
    "group_normalization": "gnorm",
    "inner_product": "ip",
    "layer_normalization": "lnorm",
    "pooling": "pool",
}
"""By oneDNN's name, where the two differ."""
