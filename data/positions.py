"""Ids to rows, by columns."""

import numpy as np
from numpy.typing import NDArray


def positions_in(known: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int32]:
    """The first row in `known` [K] of every id [N], int32; -1 for an id that is not there."""
    if not len(known):
        return np.full(len(ids), -1, dtype=np.int32)
    order = np.argsort(known, kind="stable").astype(np.int32)
    in_order = known[order]
    rows = np.minimum(np.searchsorted(in_order, ids), len(known) - 1).astype(np.int32)
    is_known = in_order[rows] == ids
    rows = order[rows]
    rows[~is_known] = -1
    return rows


def repeated(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows, in order, whose id [N] an earlier row has."""
    if bool((ids[1:] > ids[:-1]).all()):  # counted upwards, as most data sets' ids are
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    return np.sort(order[1:][in_order[1:] == in_order[:-1]])
