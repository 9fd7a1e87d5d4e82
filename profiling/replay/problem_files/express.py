"""Any problem of a log in benchdnn's language, or why there are no words for it."""

from collections.abc import Callable

from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.convolution import convolution_line
from profiling.replay.problem_files.elementwise import (
    eltwise_line,
    lrn_line,
    shuffle_line,
    softmax_line,
)
from profiling.replay.problem_files.normalization import (
    batch_normalization_line,
    group_normalization_line,
    layer_normalization_line,
)
from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError, ProblemLine
from profiling.replay.problem_files.products import inner_product_line, matmul_line
from profiling.replay.problem_files.recurrent import rnn_line
from profiling.replay.problem_files.reorder import reorder_line
from profiling.replay.problem_files.several_tensors import (
    binary_line,
    concat_line,
    prelu_line,
    reduction_line,
    sum_line,
)
from profiling.replay.problem_files.windows import pooling_line, resampling_line

DRIVERS: dict[str, Callable[[Problem, Dialect], ProblemLine]] = {
    "batch_normalization": batch_normalization_line,
    "binary": binary_line,
    "concat": concat_line,
    "convolution": convolution_line,
    "deconvolution": convolution_line,
    "eltwise": eltwise_line,
    "group_normalization": group_normalization_line,
    "inner_product": inner_product_line,
    "layer_normalization": layer_normalization_line,
    "logsoftmax": softmax_line,
    "lrn": lrn_line,
    "matmul": matmul_line,
    "pooling": pooling_line,
    "pooling_v2": pooling_line,
    "prelu": prelu_line,
    "reduction": reduction_line,
    "reorder": reorder_line,
    "resampling": resampling_line,
    "rnn": rnn_line,
    "shuffle": shuffle_line,
    "softmax": softmax_line,
    "softmax_v2": softmax_line,
    "sum": sum_line,
}

NO_WORDS = {
    "graph": "a partition of a graph: benchdnn's --graph runs a JSON file of the graph, which "
    "ONEDNN_GRAPH_DUMP=subgraph writes, and the log does not hold it",
    "ukernel": "a micro-kernel: the log does not hold the batch and the leading dimensions that "
    "benchdnn's --brgemm needs",
    "common": "no primitive",
}
"""Components of the library whose work cannot be told to benchdnn, with the reason."""

NO_DRIVER = {
    "gemm": "a plain GEMM call, for which benchdnn has no driver",
    "gemm_api": "a plain GEMM call, for which benchdnn has no driver",
    "brgemm": NO_WORDS["ukernel"],
    "sdpa": "attention as one primitive: benchdnn runs it as a graph only",
    "zero_pad": "padding with zeros is no primitive of its own in oneDNN's log",
}


def problem_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A problem as benchdnn's driver wants it.

    Raises:
        NotExpressibleError: There are no words for it; the message says why.
    """
    if problem.component in NO_WORDS:
        raise NotExpressibleError(NO_WORDS[problem.component])
    if not problem.engine.startswith("cpu") or "2" in problem.engine:
        raise NotExpressibleError(f"it ran on {problem.engine}, and replays are of CPUs")
    if problem.kind in NO_DRIVER:
        raise NotExpressibleError(NO_DRIVER[problem.kind])
    if problem.kind not in DRIVERS:
        raise NotExpressibleError(f"{problem.kind} is no kind of primitive that is known here")
    return DRIVERS[problem.kind](problem, dialect)
