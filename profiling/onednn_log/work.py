"""How much a problem computes, and how much memory it must touch at least.

The arithmetic is that of the direct algorithm, with padding counted as if it were multiplied, as
`profiling.bench.convolution_flop` has it; a Winograd implementation does less. It is counted for
what multiplies matrices; all other kinds are bound by memory. Bytes are those of every tensor once:
what would cross the memory bus if nothing stayed in a cache from before and everything needed
twice did.
"""

from collections.abc import Callable

from profiling.onednn_log.flop import FLOP
from profiling.onednn_log.problem import Problem
from profiling.onednn_log.tensor_bytes import NOT_COUNTED, TENSOR_BYTES, alike


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
