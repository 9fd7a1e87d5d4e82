"""Normalizations: benchdnn's drivers `bnorm lnorm gnorm`."""

from profiling.onednn_log.memory_descriptor import MemoryDescriptor
from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.attributes import attribute_options
from profiling.replay.problem_files.data_types import pair_option
from profiling.replay.problem_files.elementwise import data_of
from profiling.replay.problem_files.fields import (
    auxiliary_of,
    direction_of,
    require_sizes,
    tensor,
    tensor_sizes,
)
from profiling.replay.problem_files.layouts import fixed_tag, free_tag, layout_options
from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError, ProblemLine


def batch_normalization_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Batch normalization. Its epsilon is not in a log, and benchdnn's default does.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    data = data_of(problem)
    strided = data if data.strides else None
    options = [
        f"--dir={direction_of(problem)}",
        f"--dt={data.type}",
        *layout_options(
            (data, strided),
            ("tag", "tag"),
            dialect,
            takes_any=False,
            takes_strides=dialect.major != 2,
        ),
        flags_option(problem, dialect),
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("bnorm", tuple(options), require_sizes(problem))


def layer_normalization_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Layer normalization.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    options = two_tensors(problem, dialect)
    statistics = problem.memory("stats")
    if statistics is not None and statistics.tag:
        options.append(f"--stat_tag={fixed_tag(statistics)}")
    scale = problem.memory("scale") or problem.memory("shift")
    if scale is not None and scale.type != "f32":
        options.append(f"--ss_dt={scale.type}")
    options += [flags_option(problem, dialect), *attribute_options(problem, dialect)]
    return ProblemLine("lnorm", tuple(options), tensor_sizes(problem, at_least=1)[0])


def group_normalization_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Group normalization, which oneDNN has from 3.2 on.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    if dialect.major == 2:
        raise NotExpressibleError("benchdnn 2.x has no group normalization")
    options = [
        *two_tensors(problem, dialect),
        flags_option(problem, dialect),
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("gnorm", tuple(options), require_sizes(problem))


def two_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Direction, and types and layouts of source and destination."""
    source = tensor(problem, "src", "data")
    destination: MemoryDescriptor = problem.memory("dst") or source
    types = pair_option(source.type, destination.type, dialect)
    tags = fixed_tag(source)
    if dialect.major != 2:
        tags += f":{free_tag(destination, dialect)}"
    return [f"--dir={direction_of(problem)}", types, f"--tag={tags}"]


def flags_option(problem: Problem, dialect: Dialect) -> str:
    """Global statistics, scale, shift, ReLU; one tensor held scale and shift before 3.0."""
    flags = auxiliary_of(problem).get("flags", "")
    return f"--flags={flags.replace('S', 'CH') if dialect.major != 2 else flags}"
