"""Fields of a log's line, taken apart for benchdnn's drivers."""

import re

from profiling.onednn_log.memory_descriptor import MemoryDescriptor
from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.problem_line import NotExpressibleError

DIMENSIONS = re.compile(r"\d+(?:x\d+)*")
UNKNOWN_SIZE = re.compile(r"\*|-\d{10}")
"""A size that is given at run time; old versions write their mark for it as a number."""

DIRECTIONS = {
    "forward": "FWD_D",
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
    "backward": "BWD_DW",
}
"""oneDNN's propagation kinds without a bias."""


def direction_of(problem: Problem) -> str:
    """benchdnn's word, without a bias.

    Raises:
        NotExpressibleError: There is none.
    """
    if problem.direction not in DIRECTIONS:
        raise NotExpressibleError(f"benchdnn has no direction {problem.direction!r}")
    return DIRECTIONS[problem.direction]


def auxiliary_of(problem: Problem) -> dict[str, str]:
    """`alg:eltwise_relu alpha:0` as a dictionary."""
    pairs = (word.partition(":") for word in problem.auxiliary.split())
    return {name: value for name, _, value in pairs}


def algorithm_of(problem: Problem, *, prefix: str) -> str:
    """The algorithm without the name of its kind: `relu` of `eltwise_relu`.

    Raises:
        NotExpressibleError: The log has none.
    """
    if not problem.algorithm:
        raise NotExpressibleError("the log does not tell its algorithm")
    return problem.algorithm.removeprefix(prefix)


def tensor(problem: Problem, *roles: str) -> MemoryDescriptor:
    """The first of these tensors that is there.

    Raises:
        NotExpressibleError: None is.
    """
    for role in roles:
        found = problem.memory(role)
        if found is not None:
            return found
    raise NotExpressibleError(f"the log does not tell of {' or '.join(roles)}")


def sources_of(problem: Problem) -> list[MemoryDescriptor]:
    """All inputs of a primitive that has several, in the log's order."""
    return [one for one in problem.memories if re.fullmatch(r"src_?\d*", one.role)]


def require_sizes(problem: Problem) -> str:
    """The sizes as the log has them.

    Raises:
        NotExpressibleError: They are not all in the log.
    """
    if not problem.shape:
        raise NotExpressibleError("the log does not tell its sizes")
    if UNKNOWN_SIZE.search(problem.shape):
        raise NotExpressibleError(f"its sizes are known at run time only ({problem.shape})")
    return problem.shape


def tensor_sizes(problem: Problem, *, at_least: int, at_most: int | None = None) -> list[str]:
    """`2x64:64x10` apart, without what follows `at_most`.

    Raises:
        NotExpressibleError: They are fewer, or not sizes.
    """
    sizes = re.split(r"[: ]", require_sizes(problem))
    if len(sizes) < at_least or not all(map(DIMENSIONS.fullmatch, sizes)):
        raise NotExpressibleError(f"its sizes {problem.shape!r} are not those of tensors")
    return sizes[:at_most]
