"""Fixtures of the engine's tests."""

import pytest

from common.machine import cpu_flags
from common.native import usable_instruction_sets
from retinanet.engine import grouped_convolution, kernels, tile_convolution
from retinanet.engine.tile_convolution import Tiles, best_tiles

KERNELS = (
    grouped_convolution.CONVOLUTION,
    grouped_convolution.WEIGHT_GRADIENT,
    tile_convolution.POINTWISE,
    tile_convolution.CONVOLUTION,
    tile_convolution.WEIGHT_GRADIENT,
)
# If the processor computes tiles, "vectors" covers the same packing code.
EMULATED = pytest.param(
    "emulated", marks=[pytest.mark.exhaustive] if "avx512_bf16" in cpu_flags() else []
)


@pytest.fixture(params=["amx", "vectors", EMULATED, "emulated without vectors"])
def tiles(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, threads_restored: None
) -> Tiles:
    """The unit that computes tiles; the last variant compiles for the oldest instruction set."""
    kind = Tiles[request.param.split()[0].upper()]
    best = best_tiles()
    if kind is not Tiles.EMULATED and (best is None or kind < best):
        pytest.skip("the processor has no such instructions")
    if request.param == "emulated without vectors":
        for kernels in KERNELS:
            monkeypatch.setattr(kernels, "instruction_set", usable_instruction_sets()[-1])
    return kind


@pytest.fixture
def emulated_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models choose the kernels of AMX on any processor; plain C++ computes the tiles."""
    monkeypatch.setattr(kernels, "best_tiles", lambda: Tiles.EMULATED)
