"""The states of the random generators, so that a resumed run draws what it would have drawn."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Start Python's, numpy's and torch's generators from one seed."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """States of Python's and numpy's generators, as JSON takes them."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [str(name), np.asarray(keys).tolist(), position, has_gauss, cached],
    }


def restore_random_states(states: Mapping[str, Any], torch_state: Tensor | None) -> None:
    """Put the generators back where `random_states` found them."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if torch_state is not None:
        torch.set_rng_state(torch_state)
