"""Multiplications and additions of a problem, from its shape; see `profiling.onednn_log.work`.

Each function raises ValueError, KeyError or IndexError where the shape is not as it is known.
"""

from collections.abc import Callable
from math import prod

from profiling.onednn_log.dimensions import listed_sizes, named_sizes, product_sizes
from profiling.onednn_log.problem import Problem

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
