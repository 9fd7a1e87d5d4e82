"""Levels of a pyramid as the C++ of Winograd's and of AMX's convolutions has them."""

import ctypes
from collections.abc import Sequence

from torch import Tensor


class Level(ctypes.Structure):
    """`Level` as winograd.cpp and tile_convolution.cpp have it."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("images", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


def level_records(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], gates: Sequence[Tensor]
) -> ctypes.Array[Level]:
    """Where each level's maps lie, and how large they are; `gates` is empty, or one for each."""
    gate_places = [gate.data_ptr() for gate in gates] or [0] * len(inputs)
    records = [
        Level(level.data_ptr(), output.data_ptr(), gate, len(level), *level.shape[2:])
        for level, output, gate in zip(inputs, outputs, gate_places, strict=True)
    ]
    return (Level * len(records))(*records)
