"""Every kind of primitive that torch reaches."""

from collections.abc import Callable, Mapping

from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.operators.convolution import prepare_convolution
from profiling.replay.torch_runner.operators.elementwise import (
    prepare_binary,
    prepare_eltwise,
    prepare_prelu,
    prepare_softmax,
    prepare_sum,
)
from profiling.replay.torch_runner.operators.matrix import prepare_inner_product, prepare_matmul
from profiling.replay.torch_runner.operators.normalization import prepare_batch_normalization
from profiling.replay.torch_runner.operators.pooling import prepare_pooling
from profiling.replay.torch_runner.operators.reaching import NotReachedError, Run
from profiling.replay.torch_runner.operators.recurrent import prepare_rnn
from profiling.replay.torch_runner.operators.reorder import prepare_reorder

OPERATORS: Mapping[str, Callable[[Problem], Run]] = {
    "convolution": prepare_convolution,
    "deconvolution": prepare_convolution,
    "matmul": prepare_matmul,
    "inner_product": prepare_inner_product,
    "pooling": prepare_pooling,
    "eltwise": prepare_eltwise,
    "prelu": prepare_prelu,
    "softmax": prepare_softmax,
    "binary": prepare_binary,
    "sum": prepare_sum,
    "batch_normalization": prepare_batch_normalization,
    "rnn": prepare_rnn,
    "reorder": prepare_reorder,
}


def prepare(problem: Problem) -> Run:
    """Build a problem's tensors; what comes back does its work once.

    Raises:
        NotReachedError: torch has no call for it; the message says why.
    """
    if problem.kind not in OPERATORS:
        raise NotReachedError(f"torch does not call oneDNN's {problem.kind}")
    try:
        return OPERATORS[problem.kind](problem)
    except (ValueError, KeyError, IndexError) as error:
        raise NotReachedError(f"its shape {problem.shape} is not understood") from error
