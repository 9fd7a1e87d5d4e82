"""What every number of COCO's metric is a mean of."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Tables:
    """pycocotools' tables, for T IoU thresholds from 0.50 to 0.95, R recalls from 0 to 1, K
    categories in the order of their ids, A ranges of area (all, small, medium, large) and M limits
    of boxes an image (1, 10, 100); -1 where a category has no true box.
    """

    precision: NDArray[np.float64]
    """[T, R, K, A, M]"""
    recall: NDArray[np.float64]
    """[T, K, A, M]"""
