"""Kinds with several inputs: benchdnn's drivers `binary concat sum prelu reduction`."""

from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.attributes import attribute_options
from profiling.replay.problem_files.fields import (
    algorithm_of,
    auxiliary_of,
    direction_of,
    sources_of,
    tensor,
    tensor_sizes,
)
from profiling.replay.problem_files.layouts import fixed_tag, free_tag
from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError, ProblemLine


def binary_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """An operation of two tensors, of which one may be smaller.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    options = [
        *inputs(problem, dialect, how_many=2),
        f"--alg={algorithm_of(problem, prefix='binary_')}",
        *attribute_options(problem, dialect),
    ]
    sizes = tensor_sizes(problem, at_least=2, at_most=2)
    return ProblemLine("binary", tuple(options), ":".join(sizes))


def concat_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Tensors one after the other.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    sources, destination = sources_of(problem), tensor(problem, "dst")
    types = sorted({one.type for one in sources})
    if len(types) != 1:
        raise NotExpressibleError(f"benchdnn's concat takes one type, not {' and '.join(types)}")
    axis = auxiliary_of(problem).get("axis")
    if axis is None:
        raise NotExpressibleError("the log does not tell its axis")
    sizes = tensor_sizes(problem, at_least=len(sources), at_most=len(sources))
    options = [
        f"--sdt={types[0]}",
        f"--ddt={destination.type}",
        f"--stag={':'.join(map(fixed_tag, sources))}",
        f"--dtag={free_tag(destination, dialect)}",
        f"--axis={axis}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("concat", tuple(options), ":".join(sizes))


def sum_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Tensors added up. Their factors are not in a log; benchdnn's are 1.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    options = [*inputs(problem, dialect), *attribute_options(problem, dialect)]
    return ProblemLine("sum", tuple(options), tensor_sizes(problem, at_least=1)[0])


def prelu_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """ReLU with learnt slopes.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    data, weights = tensor(problem, "data", "src"), tensor(problem, "wei")
    options = [
        f"--dir={direction_of(problem)}",
        f"--sdt={data.type}:{weights.type}",
        f"--stag={fixed_tag(data)}:{free_tag(weights, dialect)}",
        *attribute_options(problem, dialect),
    ]
    sizes = tensor_sizes(problem, at_least=2, at_most=2)
    return ProblemLine("prelu", tuple(options), ":".join(sizes))


def reduction_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Sum, largest, norm … along dimensions.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, destination = tensor(problem, "src"), tensor(problem, "dst")
    fields = auxiliary_of(problem)
    options = [
        f"--sdt={source.type}",
        f"--ddt={destination.type}",
        f"--stag={fixed_tag(source)}",
        f"--dtag={free_tag(destination, dialect)}",
        f"--alg={algorithm_of(problem, prefix='reduction_')}",
        f"--p={fields.get('p', '0')}",
        f"--eps={fields.get('eps', '0')}",
        *attribute_options(problem, dialect),
    ]
    sizes = tensor_sizes(problem, at_least=2, at_most=2)
    return ProblemLine("reduction", tuple(options), ":".join(sizes))


def inputs(problem: Problem, dialect: Dialect, *, how_many: int | None = None) -> list[str]:
    """Types and layouts of the inputs and of the result.

    Raises:
        NotExpressibleError: They are not `how_many`, or one cannot be told.
    """
    sources, destination = sources_of(problem), tensor(problem, "dst")
    if not sources or how_many not in (None, len(sources)):
        raise NotExpressibleError(f"the log tells of {len(sources)} inputs")
    return [
        f"--sdt={':'.join(one.type for one in sources)}",
        f"--ddt={destination.type}",
        f"--stag={':'.join(map(fixed_tag, sources))}",
        f"--dtag={free_tag(destination, dialect)}",
    ]
