"""Winograd's convolution against torch's own in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from common.errors import InputError
from common.machine import cpu_flags
from retinanet.engine import winograd
from retinanet.engine.winograd import choose_winograd, winograd_convolve

HAS_BF16 = "avx512_bf16" in cpu_flags()
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="the processor has no AVX-512 BF16")

ROUNDING = 2**-8
"""Of a BF16 number, relative."""

SIZES = [[(10, 10), (5, 5), (3, 3), (2, 2), (1, 1)], [(7, 9)], [(1, 6), (33, 2)]]
CHANNELS = [(64, 96), (37, 91), (300, 33), (2, 300), (1, 1)]


def levels_of(sizes: list[tuple[int, int]], *, images: int, channels: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(images, channels, height, width) for height, width in sizes]
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


def distance(value: Tensor, reference: Tensor) -> float:
    return ((value.double() - reference).norm() / reference.norm().clamp(min=1e-30)).item()


@needs_bf16
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("in_channels", "out_channels"), CHANNELS)
@pytest.mark.parametrize("sizes", SIZES)
def test_outputs_and_gradients_are_the_convolutions(
    sizes: list[tuple[int, int]], in_channels: int, out_channels: int, relu: bool
) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(out_channels, in_channels, 3, 3, generator=generator) / in_channels**0.5
    bias = torch.randn(out_channels, generator=generator)
    levels = levels_of(sizes, images=2, channels=in_channels)
    # Sums of few terms may cancel to nearly nothing, beside which rounding is large.
    allowed = (2 if in_channels > 2 else 6) * ROUNDING
    for tensor in (weight, bias, *levels):
        tensor.requires_grad_()
    outputs = winograd_convolve(levels, weight, bias, relu=relu)
    wanted = [F.conv2d(x.double(), weight.double(), bias.double(), padding=1) for x in levels]
    given = [torch.randn(y.shape, generator=generator).bfloat16() for y in outputs]
    # The reference's ReLU opens where ours does: near zero rounding decides.
    gates = [(y > 0) if relu else torch.ones_like(y, dtype=torch.bool) for y in outputs]
    for output, reference, gate in zip(outputs, wanted, gates, strict=True):
        assert output.dtype == torch.bfloat16
        assert output.is_contiguous(memory_format=torch.channels_last)
        assert distance(output, reference * gate) < allowed
    sources = [weight, bias, *levels]
    found = torch.autograd.grad(outputs, sources, given)
    gated = [g.double() * gate for g, gate in zip(given, gates, strict=True)]
    for value, reference in zip(found, torch.autograd.grad(wanted, sources, gated), strict=True):
        assert distance(value, reference.double()) < allowed


@needs_bf16
def test_relu_lets_through_what_is_positive_only() -> None:
    [level] = levels_of([(9, 9)], images=2, channels=16)
    weight, bias = torch.randn(8, 16, 3, 3), torch.zeros(8)
    [plain] = winograd_convolve([level], weight, bias, relu=False)
    [gated] = winograd_convolve([level], weight, bias, relu=True)
    assert torch.equal(gated, plain.relu())
    assert (gated == 0).any()


@needs_bf16
def test_bias_gradient_is_summed_in_float32() -> None:
    level = torch.zeros(2, 16, 40, 40, dtype=torch.bfloat16)
    weight, bias = torch.zeros(24, 16, 3, 3), torch.zeros(24, requires_grad=True)
    [output] = winograd_convolve([level], weight, bias, relu=False)
    output.backward(torch.ones_like(output))
    assert bias.grad is not None
    assert torch.equal(bias.grad, torch.full((24,), 3200.0))


@needs_bf16
def test_threads_and_repetition_change_nothing() -> None:
    levels = levels_of([(24, 24), (12, 12)], images=2, channels=64)
    weight = torch.randn(64, 64, 3, 3).requires_grad_()
    bias = torch.zeros(64)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            outputs = winograd_convolve(levels, weight, bias, relu=True)
            gradients = torch.autograd.grad(outputs, weight, [torch.ones_like(y) for y in outputs])
            results.append([*outputs, *gradients])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@needs_bf16
@pytest.mark.parametrize("out_channels", [16, 600])
def test_weight_gradient_shared_by_many_threads(out_channels: int) -> None:
    """Then each takes a part of the pixels, and of many channels a block."""
    sizes = [(41, 33), (20, 17), (9, 5)]
    maps = levels_of(sizes, images=2, channels=40)
    given = levels_of(sizes, images=2, channels=out_channels)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(7)
        found, again = (
            winograd.weight_gradient(
                [winograd.channels_last(level) for level in maps],
                [winograd.channels_last(level) for level in given],
                [],
            )
            for _ in range(2)
        )
    finally:
        torch.set_num_threads(threads)
    weight = torch.zeros(out_channels, 40, 3, 3, dtype=torch.float64, requires_grad=True)
    outputs = [F.conv2d(level.double(), weight, padding=1) for level in maps]
    [wanted] = torch.autograd.grad(outputs, weight, [gradient.double() for gradient in given])
    assert distance(found, wanted) < 2 * ROUNDING
    assert torch.equal(found, again)


@needs_bf16
def test_nan_spreads_no_further_than_its_tiles() -> None:
    [level] = levels_of([(8, 8)], images=1, channels=16)
    level[0, 3, 0, 0] = float("nan")
    [output] = winograd_convolve([level], torch.randn(8, 16, 3, 3), torch.zeros(8), relu=True)
    assert output[0, :, 0, 0].isnan().all()
    assert output[0, :, 4:, 4:].isfinite().all()


@needs_bf16
def test_no_gradient_is_computed_that_nobody_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    [level] = levels_of([(8, 8)], images=1, channels=16)
    weight = torch.randn(8, 16, 3, 3, requires_grad=True)
    [output] = winograd_convolve([level], weight, torch.zeros(8), relu=False)
    monkeypatch.setattr(winograd, "convolve_levels", None)  # would fail if it were called
    [gradient] = torch.autograd.grad(output, weight, torch.ones_like(output))
    assert gradient.isfinite().all()


@pytest.mark.skipif(HAS_BF16, reason="the processor has AVX-512 BF16")
def test_a_processor_without_bf16_takes_onednn() -> None:
    assert not choose_winograd("auto")
    with pytest.raises(InputError, match=r"engine\.convolutions: winograd is not available"):
        choose_winograd("winograd")


def test_processors_with_matrix_units_or_without_bf16_are_left_to_onednn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winograd, "cpu_flags", lambda: {"avx512_bf16", "amx_bf16"})
    assert not choose_winograd("auto")
    monkeypatch.setattr(winograd, "cpu_flags", lambda: {"avx2"})
    assert not choose_winograd("auto")
    assert not choose_winograd("onednn")
