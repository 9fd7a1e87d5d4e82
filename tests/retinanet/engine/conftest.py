"""What the engine's tests share."""

import functools
from collections.abc import Iterator

import pytest
import torch

from common.native import load_library, usable_instruction_sets
from retinanet.engine import (
    convolution,
    grouped_convolution,
    pointwise_convolution,
    tile_convolution,
    weight_gradient,
)
from retinanet.engine.tile_convolution import Tiles, best_tiles

KERNELS = (grouped_convolution, pointwise_convolution, tile_convolution, weight_gradient)
LIBRARIES = (
    grouped_convolution.convolution_library,
    grouped_convolution.weight_gradient_library,
    pointwise_convolution.library,
    tile_convolution.library,
    weight_gradient.library,
)


def forget_libraries() -> None:
    for library in LIBRARIES:
        library.cache_clear()


@pytest.fixture(params=["amx", "vectors", "emulated", "emulated without vectors"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tiles]:
    """What computes the tile instructions; the last also for the plainest instruction set."""
    kind = Tiles[request.param.split()[0].upper()]
    best = best_tiles()
    if kind is not Tiles.EMULATED and (best is None or kind < best):
        pytest.skip("the processor has no such instructions")
    if request.param == "emulated without vectors":
        plainest = functools.partial(load_library, instruction_set=usable_instruction_sets()[-1])
        for module in KERNELS:
            monkeypatch.setattr(module, "load_library", plainest)
        forget_libraries()
    threads = torch.get_num_threads()
    yield kind
    torch.set_num_threads(threads)
    if request.param == "emulated without vectors":
        forget_libraries()


@pytest.fixture
def own_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `convolve` take AMX's kernels on any processor, by the best that computes tiles here."""
    best = best_tiles()
    kind = Tiles.EMULATED if best is None else best
    monkeypatch.setattr(convolution, "has_tiles", lambda: True)
    for module, names in (
        (tile_convolution, ["outputs_of", "input_gradients"]),
        (
            convolution,
            [
                "pointwise_output",
                "pointwise_input_gradient",
                "strided_input_gradient",
                "weight_gradient",
                "grouped_convolution",
                "grouped_input_gradient",
                "grouped_weight_gradient",
            ],
        ),
    ):
        for name in names:
            own = functools.partial(getattr(module, name), tiles=kind)
            monkeypatch.setattr(module, name, own)
