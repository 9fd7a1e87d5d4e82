"""What the modules of this folder share: how a problem that torch cannot run is told."""

from collections.abc import Callable

from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.attributes import other_attributes, post_ops

Run = Callable[[], object]
"""Does a problem's work once."""


class NotReachedError(LookupError):
    """torch has no call for a problem; the message says why, in one line."""


def require_plain(problem: Problem) -> None:
    """Refuse a problem into which something is fused.

    Raises:
        NotReachedError: Names it.
    """
    fused = (*post_ops(problem), *other_attributes(problem))
    if fused:
        raise NotReachedError(f"torch does not fuse {' '.join(fused)} into {name_of(problem)}")


def name_of(problem: Problem) -> str:
    """Kind and direction: `convolution forward_training`."""
    direction = "" if problem.direction == "undef" else f" {problem.direction}"
    return problem.kind + direction
