"""Weights as AMX's kernels read them: every value in its tile, zeros around."""

import pytest
import torch
from torch import Tensor

from retinanet.engine.tile_convolution import BLOCK, pack_weight


def unpacked(tiles: Tensor, columns: int, sums: int, taps: int) -> Tensor:
    """[columns, sums, taps] of packed tiles, padding included."""
    shape = (-(-columns // BLOCK) * 2, -(-sums // BLOCK), taps, 16, 16, 2)
    values = tiles.view(torch.bfloat16).view(shape)
    by_column = values.permute(0, 4, 1, 3, 5, 2)
    return by_column.reshape(shape[0] * 16, shape[1] * BLOCK, taps)


@pytest.mark.parametrize(
    "shape", [(32, 32, 1, 1), (64, 96, 3, 3), (37, 5, 3, 3), (1, 71, 1, 1)], ids=str
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("scaled", [False, True])
def test_every_weight_is_in_its_place(
    shape: tuple[int, ...], layout: torch.memory_format, scaled: bool
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape).contiguous(memory_format=layout)
    scale = torch.rand(shape[0]) + 0.5 if scaled else None
    packed, turned = pack_weight(weight, scale, for_gradients=True)
    outputs, inputs, taps = shape[0], shape[1], shape[2] * shape[3]
    wanted = weight if scale is None else weight * scale.view(-1, 1, 1, 1)
    wanted = wanted.reshape(outputs, inputs, taps).bfloat16()
    forward = unpacked(packed.values, outputs, inputs, taps)
    assert turned is not None and (packed.channels, turned.channels) == (outputs, inputs)
    backward = unpacked(turned.values, inputs, outputs, taps)
    assert torch.equal(forward[:outputs, :inputs], wanted)
    assert torch.equal(backward[:inputs, :outputs], wanted.transpose(0, 1).flip(2))
    assert forward.count_nonzero() == backward.count_nonzero() == wanted.count_nonzero()


def test_only_what_is_wanted_is_packed() -> None:
    packed, turned = pack_weight(torch.randn(32, 64, 3, 3))
    assert turned is None
    assert packed.channels == 32
