"""What the engine's tests share."""

import functools
from collections.abc import Iterator

import pytest
import torch

from common.native import usable_instruction_sets
from retinanet.engine import convolution, grouped_convolution, tile_convolution
from retinanet.engine.tile_convolution import Tiles, best_tiles

KERNELS = (
    grouped_convolution.CONVOLUTION,
    grouped_convolution.WEIGHT_GRADIENT,
    tile_convolution.POINTWISE,
    tile_convolution.CONVOLUTION,
    tile_convolution.WEIGHT_GRADIENT,
)


@pytest.fixture(params=["amx", "vectors", "emulated", "emulated without vectors"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tiles]:
    """What computes the tile instructions; the last also for the plainest instruction set."""
    kind = Tiles[request.param.split()[0].upper()]
    best = best_tiles()
    if kind is not Tiles.EMULATED and (best is None or kind < best):
        pytest.skip("the processor has no such instructions")
    if request.param == "emulated without vectors":
        for kernels in KERNELS:
            monkeypatch.setattr(kernels, "instruction_set", usable_instruction_sets()[-1])
    threads = torch.get_num_threads()
    yield kind
    torch.set_num_threads(threads)


@pytest.fixture
def own_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `convolve` take AMX's kernels on any processor, by the best that computes tiles here."""
    best = best_tiles()
    kind = Tiles.EMULATED if best is None else best
    monkeypatch.setattr(convolution, "has_tiles", lambda: True)
    for name in (
        "tile_convolve",
        "pointwise_convolve",
        "weight_gradient",
        "grouped_convolution",
        "grouped_input_gradient",
        "grouped_weight_gradient",
    ):
        own = functools.partial(getattr(convolution, name), tiles=kind)
        monkeypatch.setattr(convolution, name, own)
