"""The choice of kernels for each layer and machine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from retinanet.engine.convolution import convolve
from retinanet.engine.kernels import (
    ONLY_ONEDNN,
    POINTWISE,
    POINTWISE_OF_STRIDE_2,
    SAME_3X3,
    ConvParams,
    Kernel,
    Machine,
    choose_kernels,
    print_table,
)
from retinanet.engine.tile_convolution import Tiles

AMX, VECTORS = Machine(Tiles.AMX), Machine(Tiles.VECTORS)
PAGE = Path(__file__).parents[3] / "docs" / "code.md"


def test_page_has_the_table_that_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    print_table()
    assert capsys.readouterr().out in PAGE.read_text(encoding="utf-8")


def grouped(stride: int, groups: int = 8) -> ConvParams:
    return ConvParams((stride, stride), (1, 1), groups)


@pytest.mark.parametrize(
    ("shape", "params", "suits"),
    [
        ((64, 8, 3, 3), grouped(1), True),
        ((64, 32, 3, 3), grouped(2, groups=2), True),
        ((64, 64, 3, 3), grouped(2, groups=1), False),
        ((64, 1, 3, 3), grouped(1, groups=64), False),
        ((128, 8, 3, 3), grouped(1), False),  # twice as many output channels
        ((48, 8, 3, 3), grouped(1, groups=6), False),
        ((64, 8, 3, 3), ConvParams((2, 1), (1, 1), 8), False),
        ((64, 8, 3, 3), ConvParams((1, 1), (0, 0), 8), False),
        ((64, 8, 1, 3), grouped(1), False),
    ],
)
def test_grouped_convolutions(shape: tuple[int, ...], params: ConvParams, suits: bool) -> None:
    for machine in (AMX, VECTORS):
        kernels = choose_kernels(shape, params, machine)
        assert (kernels.weight_gradient is Kernel.GROUPED) == suits
    assert choose_kernels(shape, params).forward is Kernel.ONEDNN


@pytest.mark.parametrize(
    ("machine", "width", "stride", "forward"),
    [
        (VECTORS, 8, 1, True),
        (VECTORS, 16, 1, True),
        (VECTORS, 16, 2, True),
        (VECTORS, 32, 2, True),
        (AMX, 8, 1, True),
        (AMX, 16, 1, False),
        (AMX, 16, 2, True),
    ],
)
def test_grouped_kernels_are_chosen_where_they_are_faster_than_onednn(
    machine: Machine, width: int, stride: int, forward: bool
) -> None:
    kernels = choose_kernels((64, width, 3, 3), grouped(stride, groups=64 // width), machine)
    assert (kernels.forward is Kernel.GROUPED) == forward
    assert kernels.input_gradient is kernels.forward
    assert kernels.weight_gradient is Kernel.GROUPED


@pytest.mark.parametrize("machine", [ONLY_ONEDNN, AMX, VECTORS, Machine(None, has_winograd=True)])
@pytest.mark.parametrize(
    ("shape", "params"),
    [
        ((8, 8, 3, 3), ConvParams((2, 2), (1, 1), 1)),
        ((8, 8, 3, 3), POINTWISE),
        ((8, 3, 7, 7), ConvParams((2, 2), (3, 3), 1)),
    ],
)
def test_other_convolutions_are_onednns(
    shape: tuple[int, ...], params: ConvParams, machine: Machine
) -> None:
    assert set(choose_kernels(shape, params, machine)[:3]) == {Kernel.ONEDNN}


@pytest.mark.parametrize(
    ("shape", "params", "machine", "names"),
    [
        ((32, 40, 1, 1), POINTWISE, AMX, "oneDNN, oneDNN, tiles"),
        ((41, 32, 1, 1), POINTWISE, AMX, "oneDNN, oneDNN, padded, tiles"),
        ((32, 40, 1, 1), POINTWISE, VECTORS, "oneDNN, oneDNN, product"),
        ((32, 40, 1, 1), POINTWISE_OF_STRIDE_2, VECTORS, "oneDNN, oneDNN, oneDNN"),
        ((91, 8, 3, 3), SAME_3X3, ONLY_ONEDNN, "oneDNN, oneDNN, padded, oneDNN"),
        ((91, 8, 3, 3), SAME_3X3, Machine(Tiles.AMX, has_winograd=True), "Winograd, " * 3),
    ],
)
def test_odd_channels(
    shape: tuple[int, ...], params: ConvParams, machine: Machine, names: str
) -> None:
    kernels = choose_kernels(shape, params, machine)[:3]
    assert ", ".join(kernel.value for kernel in kernels) == names.removesuffix(", ")


class PrecisionsOfConvolutions(TorchDispatchMode):
    """Keeps the types of the maps that convolutions read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "convolution" in str(function):
            self.seen.add(args[0].dtype)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("flags", "size", "stride", "precision"),
    [
        ({"amx_bf16"}, 7, 2, torch.float32),
        ({"amx_bf16"}, 7, 1, torch.bfloat16),
        ({"amx_bf16"}, 40, 2, torch.bfloat16),
        ({"avx512_bf16"}, 7, 2, torch.bfloat16),
    ],
)
def test_strided_convolutions_of_small_maps_are_not_onednns_in_bf16_on_amx(
    flags: set[str],
    size: int,
    stride: int,
    precision: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """oneDNN reads memory beside such maps there, see test_foreign_memory.py."""
    monkeypatch.setattr("retinanet.engine.kernels.cpu_flags", lambda: flags)
    params = ConvParams((stride, stride), (1, 1), 1)
    weight = torch.randn(32, 32, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    maps = torch.randn(2, 32, size, size).bfloat16().contiguous(memory_format=torch.channels_last)
    bias, used = torch.randn(32), PrecisionsOfConvolutions()
    with used:
        [result] = convolve(
            [maps.requires_grad_()], weight, bias, params=params, machine=ONLY_ONEDNN
        )
        result.float().square().sum().backward()
    assert used.seen == {precision}
    assert maps.grad is not None and result.dtype == maps.grad.dtype == torch.bfloat16
    expected = F.conv2d(maps.double(), weight.double(), bias.double(), stride, 1)
    torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.2)
