"""The states of the random generators, so that a resumed run draws what it would have drawn."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def seed_everything(seed: int) -> None:
    """Start Python's, numpy's and torch's generators from one seed."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """States of Python's, numpy's and torch's generators, as JSON takes them."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, np.array(words, dtype=np.uint32).tobytes().hex(), gauss],
        "numpy": [str(name), np.asarray(keys).tobytes().hex(), position, has_gauss, cached],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Put the generators back where `random_states` found them.

    Raises:
        ValueError: The states are not what `random_states` gives.
    """
    before = random_states()
    try:
        _restore(states)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        _restore(before)  # a generator took what it could not draw from
        raise ValueError(f"random states are damaged: {error!r}") from error


def _restore(states: Mapping[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, tuple(numbers(words, np.uint32).tolist()), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, numbers(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.from_numpy(numbers(states["torch"], np.uint8)))


def numbers(text: str, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """The numbers of which a hexadecimal text is the memory."""
    return np.frombuffer(bytearray.fromhex(text), dtype=kind)
