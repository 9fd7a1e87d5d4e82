"""Reorders that are asked for; those inside other operators come back with them."""

import torch

from profiling.onednn_log.dimensions import listed_sizes
from profiling.onednn_log.problem import Problem
from profiling.replay.torch_runner.layouts import is_plain, order_of
from profiling.replay.torch_runner.operators.reaching import (
    NotReachedError,
    Run,
    require_plain,
)
from profiling.replay.torch_runner.operators.tensors import (
    make_opaque,
    require_memory,
    type_of,
)


def prepare_reorder(problem: Problem) -> Run:
    """A copy into oneDNN's tensors, another type, or another order of dimensions.

    Raises:
        NotReachedError: Only some other operator makes such a reorder on its way.
    """
    require_plain(problem)
    source, target = require_memory(problem, "src"), require_memory(problem, "dst")
    (dims,) = listed_sizes(problem.shape)
    if not (is_plain(source.tag) and is_plain(target.tag)):
        raise NotReachedError("no operator of this log makes this reorder here")
    if target.tag != "".join(sorted(target.tag)):
        raise NotReachedError(f"torch asks for no reorder to {target.tag}")
    if source.tag == target.tag:
        data, wanted = make_opaque(dims, source), type_of(target)
        return lambda: data.to_dense(wanted)
    order = order_of(source.tag)
    moved = [place for place, where in enumerate(order) if place != where]
    if len(moved) != 2 or source.type != target.type:
        raise NotReachedError(f"torch asks for no reorder from {source.tag} to {target.tag}")
    swapped = list(dims)
    swapped[moved[0]], swapped[moved[1]] = swapped[moved[1]], swapped[moved[0]]
    other = torch.empty(swapped, dtype=type_of(source)).normal_().to_mkldnn()
    return lambda: torch.ops.aten._mkldnn_transpose(other, moved[0], moved[1])
