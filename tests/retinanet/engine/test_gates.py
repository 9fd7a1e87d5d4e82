"""Every kernel with a gate, for every BF16 number in it: NaN of both signs is open, as in torch."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from common.machine import cpu_flags
from common.native import usable_instruction_sets
from retinanet.engine.grouped_convolution import grouped_input_gradient
from retinanet.engine.norm_relu import MASKED_SUM, add_relu_, masked_sum_
from retinanet.engine.tile_convolution import Tiles, pack_weight, pointwise_convolve, tile_convolve
from retinanet.engine.winograd import convolve_levels

BITS = torch.arange(-(2**15), 2**15, dtype=torch.int32)
CHANNELS, SIDE = 64, 32


def every_number(bits: Tensor) -> Tensor:
    """Return maps of one image in channels_last memory."""
    return bits.view(1, SIDE, SIDE, CHANNELS).permute(0, 3, 1, 2)


GATE = every_number(BITS.to(torch.int16).view(torch.bfloat16))


def gated_by_torch(gradient: Tensor, gate: Tensor) -> Tensor:
    gated: Tensor = torch.ops.aten.threshold_backward(gradient, gate, 0)
    return gated


def weight_of(size: int, width: int = CHANNELS) -> Tensor:
    return (torch.rand(CHANNELS, width, size, size) + 0.5).bfloat16()


def dense(gates: Sequence[Tensor], gradient: Tensor, tiles: Tiles) -> Tensor:
    _, turned = pack_weight(weight_of(3), for_gradients=True)
    assert turned is not None
    return tile_convolve([gradient], turned, gates=gates, tiles=tiles)[0]


def pointwise(gates: Sequence[Tensor], gradient: Tensor, tiles: Tiles) -> Tensor:
    _, turned = pack_weight(weight_of(1), for_gradients=True)
    assert turned is not None
    return pointwise_convolve(gradient, turned, gate=gates[0] if gates else None, tiles=tiles)


def grouped(gates: Sequence[Tensor], gradient: Tensor, tiles: Tiles, stride: int = 1) -> Tensor:
    small, weight = gradient[:, :, ::stride, ::stride], weight_of(3, width=8)
    return grouped_input_gradient(small, weight, gradient.shape, *gates, stride=stride, tiles=tiles)


def grouped_of_stride_2(gates: Sequence[Tensor], gradient: Tensor, tiles: Tiles) -> Tensor:
    return grouped(gates, gradient, tiles, stride=2)


def by_winograd(gates: Sequence[Tensor], gradient: Tensor, _tiles: Tiles) -> Tensor:
    if "avx512_bf16" not in cpu_flags():
        pytest.skip("the processor has no AVX-512 BF16")
    maps = gradient.contiguous(memory_format=torch.channels_last)
    return convolve_levels([maps], weight_of(3).float(), gates=gates, backward=True)[0]


@pytest.mark.parametrize("kernel", [dense, pointwise, grouped, grouped_of_stride_2, by_winograd])
def test_input_gradients(tiles: Tiles, kernel: Callable[..., Tensor]) -> None:
    results = []
    for gates in ([], [GATE]):
        torch.manual_seed(0)
        results.append(kernel(gates, torch.rand(GATE.shape).bfloat16() + 0.5, tiles))
    ungated, gated = results
    assert ungated.all()
    assert torch.equal(gated, gated_by_torch(ungated, GATE))


@pytest.mark.parametrize("instruction_set", usable_instruction_sets())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sums(monkeypatch: pytest.MonkeyPatch, instruction_set: str, dtype: torch.dtype) -> None:
    monkeypatch.setattr(MASKED_SUM, "instruction_set", instruction_set)
    # In float32 all 16 lower bits as well: NaN that lies there alone has no form in BF16.
    wide = every_number((BITS << 16 | BITS & 0xFFFF).view(torch.float32))
    gate = GATE if dtype == torch.bfloat16 else wide
    gradient = torch.rand(gate.shape, dtype=dtype).add_(0.5).to(memory_format=torch.channels_last)
    assert torch.equal(masked_sum_([gradient.clone()], gate), gated_by_torch(gradient, gate))
    result, expected = add_relu_(gate.clone(), torch.zeros_like(gate)), gate.relu()
    assert torch.equal(result.isnan(), gate.isnan())
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())
