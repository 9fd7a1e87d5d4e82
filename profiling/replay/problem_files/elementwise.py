"""Kinds of one tensor that keep its sizes: benchdnn's `eltwise lrn shuffle softmax`."""

from profiling.onednn_log.memory_descriptor import MemoryDescriptor
from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.attributes import attribute_options
from profiling.replay.problem_files.data_types import pair_option
from profiling.replay.problem_files.fields import (
    algorithm_of,
    auxiliary_of,
    direction_of,
    require_sizes,
    tensor,
    tensor_sizes,
)
from profiling.replay.problem_files.layouts import fixed_tag, free_tag
from profiling.replay.problem_files.post_operations import eltwise
from profiling.replay.problem_files.problem_line import (
    Dialect,
    NotExpressibleError,
    ProblemLine,
)

LRN_ALGORITHMS = {"across_channels": "ACROSS", "within_channel": "WITHIN"}


def eltwise_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A function of every element.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    fields = auxiliary_of(problem)
    name, alpha, beta = eltwise(
        algorithm_of(problem, prefix=""),
        (fields.get("alpha", "0"), fields.get("beta", "0")),
        dialect,
    )
    options = [
        *common_options(problem),
        f"--alg={name}",
        f"--alpha={alpha}",
        f"--beta={beta}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("eltwise", tuple(options), tensor_sizes(problem, at_least=1)[0])


def lrn_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Local response normalization.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    name = algorithm_of(problem, prefix="lrn_")
    options = [
        *common_options(problem),
        f"--alg={LRN_ALGORITHMS.get(name, name)}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("lrn", tuple(options), require_sizes(problem))


def shuffle_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Channels in another order.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    fields = auxiliary_of(problem)
    if "axis" not in fields or "group" not in fields:
        raise NotExpressibleError("the log does not tell its axis and group")
    options = [
        *common_options(problem),
        f"--axis={fields['axis']}",
        f"--group={fields['group']}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("shuffle", tuple(options), tensor_sizes(problem, at_least=1)[0])


def softmax_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Softmax, or its logarithm.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    fields = auxiliary_of(problem)
    if "axis" not in fields:
        raise NotExpressibleError("the log does not tell its axis")
    is_log = problem.kind == "logsoftmax" or problem.algorithm == "softmax_log"
    options = [
        f"--dir={direction_of(problem)}",
        *softmax_tensors(problem, dialect),
        f"--alg={'LOGSOFTMAX' if is_log else 'SOFTMAX'}",
        f"--axis={fields['axis']}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("softmax", tuple(options), tensor_sizes(problem, at_least=1)[0])


def softmax_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Types and layouts; backward, benchdnn's source is that of the gradient that comes out."""
    source = tensor(problem, "src", "diff_src", "data", "dst")
    destination = problem.memory("dst") or source
    if dialect.major == 2:
        return [pair_option(source.type, destination.type, dialect), f"--tag={fixed_tag(source)}"]
    # Backward the destination's layout is given, and the source's follows from it.
    given = destination if direction_of(problem) == "BWD_D" else source
    return [
        f"--sdt={source.type}",
        f"--ddt={destination.type}",
        f"--stag={fixed_tag(given)}",
        f"--dtag={free_tag(destination, dialect)}",
    ]


def common_options(problem: Problem) -> list[str]:
    """Direction, type and layout."""
    data = data_of(problem)
    return [f"--dir={direction_of(problem)}", f"--dt={data.type}", f"--tag={fixed_tag(data)}"]


def data_of(problem: Problem) -> MemoryDescriptor:
    """The tensor that a driver with one type and one layout is told of.

    Raises:
        NotExpressibleError: Another tensor of the problem differs from it.
    """
    data = tensor(problem, "data", "src", "dst", "diff_src", "diff")
    for other in problem.memories:
        is_like_it = other.role.endswith(("data", "src", "dst", "diff"))
        differs = (other.type, other.tag or data.tag) != (data.type, data.tag)
        if other.is_there and is_like_it and differs and "a" not in other.properties:
            raise NotExpressibleError(
                f"{data.role} is {data.type} {data.layout} and {other.role} {other.type} "
                f"{other.layout}; this driver of benchdnn takes one type and one layout"
            )
    return data
