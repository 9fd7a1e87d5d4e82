"""Matrix products and inner products: benchdnn's drivers `matmul` and `ip`."""

import re

from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.attributes import attribute_options
from profiling.replay.problem_files.convolution import direction_with_bias
from profiling.replay.problem_files.data_types import triple_option
from profiling.replay.problem_files.fields import (
    auxiliary_of,
    require_sizes,
    tensor,
    tensor_sizes,
)
from profiling.replay.problem_files.layouts import layout_options
from profiling.replay.problem_files.problem_line import (
    Dialect,
    NotExpressibleError,
    ProblemLine,
)

NAMES = ("stag", "wtag", "dtag")


def matmul_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A product of matrices, or of batches of them.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, weights, destination = (tensor(problem, role) for role in ("src", "wei", "dst"))
    sizes = tensor_sizes(problem, at_least=2, at_most=2)
    if "sparse" in (source.kind, weights.kind, destination.kind):
        raise NotExpressibleError("a product of sparse matrices; the log does not tell how sparse")
    masks = auxiliary_of(problem).get("runtime_dims_masks")
    options = [
        triple_option(source.type, weights.type, destination.type, dialect),
        # Layouts of sizes that come at run time cannot be chosen before.
        *layout_options((source, weights, destination), NAMES, dialect, takes_any=not masks),
        *bias_options(problem, dimensions=sizes[0].count("x") + 1),
    ]
    if masks:
        options.append(f"--runtime_dims_masks={masks}")
    options += attribute_options(problem, dialect, dimensions=sizes[0].count("x") + 1)
    return ProblemLine("matmul", tuple(options), ":".join(sizes))


def bias_options(problem: Problem, *, dimensions: int) -> list[str]:
    """Type and mask of the bias: a bit for each dimension in which it has values of its own.

    Where a log does not tell the mask, the bias has a value for each column.
    """
    bias = problem.memory("bia")
    if bias is None:
        return []
    told = re.search(r"mask(\d+)", f"{bias.flags} {problem.auxiliary}")
    mask = told[1] if told else str(1 << (dimensions - 1))
    return [f"--bia_dt={bias.type}", f"--bia_mask={mask}"]


def inner_product_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A fully connected layer.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, weights = tensor(problem, "src", "diff_src"), tensor(problem, "wei", "diff_wei")
    destination = tensor(problem, "dst", "diff_dst")
    direction, notes = direction_with_bias(problem)
    options = [
        f"--dir={direction}",
        triple_option(source.type, weights.type, destination.type, dialect),
        *layout_options((source, weights, destination), NAMES, dialect, takes_strides=False),
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("ip", tuple(options), require_sizes(problem), tuple(notes))
