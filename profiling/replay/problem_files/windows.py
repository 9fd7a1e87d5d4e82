"""Pooling and resampling: benchdnn's drivers `pool` and `resampling`."""

from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.attributes import attribute_options
from profiling.replay.problem_files.data_types import pair_option
from profiling.replay.problem_files.fields import algorithm_of, direction_of, require_sizes, tensor
from profiling.replay.problem_files.layouts import fixed_tag, free_tag
from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError, ProblemLine

POOLING = {
    "max": "max",
    "avg": "avg_np",
    "avg_exclude_padding": "avg_np",
    "avg_include_padding": "avg_p",
}


def pooling_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Pooling; its layout is given, and the result's is the library's choice.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, destination = tensor(problem, "src", "diff_src"), tensor(problem, "dst", "diff_dst")
    name = algorithm_of(problem, prefix="pooling_")
    options = [
        f"--dir={direction_of(problem)}",
        pair_option(source.type, destination.type, dialect, old_name="cfg"),
        f"--tag={one_tag(problem, dialect)}",
        f"--alg={POOLING.get(name, name)}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("pool", tuple(options), require_sizes(problem))


def resampling_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Resampling; backward, the layout that is given is the incoming gradient's.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, destination = tensor(problem, "src", "diff_src"), tensor(problem, "dst", "diff_dst")
    options = [
        f"--dir={direction_of(problem)}",
        f"--sdt={source.type}",
        f"--ddt={destination.type}",
        f"--tag={one_tag(problem, dialect)}",
        f"--alg={algorithm_of(problem, prefix='resampling_')}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("resampling", tuple(options), require_sizes(problem))


def one_tag(problem: Problem, dialect: Dialect) -> str:
    """The layout of both tensors.

    Raises:
        NotExpressibleError: They differ.
    """
    source, destination = tensor(problem, "src", "diff_src"), tensor(problem, "dst", "diff_dst")
    free = {free_tag(one, dialect) for one in (source, destination)} - {"any"}
    if len(free) > 1:
        raise NotExpressibleError(
            f"it goes from {source.layout} to {destination.layout}, and this driver of benchdnn "
            "takes one layout"
        )
    return free.pop() if free else fixed_tag(source)
