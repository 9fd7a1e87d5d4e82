"""Winograd's convolution against torch's own in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from common.errors import InputError
from common.machine import cpu_flags
from retinanet.engine import winograd
from retinanet.engine.winograd import choose_winograd, winograd_convolve
from tests.retinanet.engine.kernels import assert_equal, distance

HAS_BF16 = "avx512_bf16" in cpu_flags()
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="the processor has no AVX-512 BF16")

ROUNDING = 2**-8
"""Of a BF16 number, relative."""

SIZES = [[(10, 10), (5, 5), (3, 3), (2, 2), (1, 1)], [(7, 9)], [(1, 6), (33, 2)]]
CHANNELS = [(64, 96), (37, 91), (300, 33), (2, 300), (1, 1)]


def make_levels(sizes: list[tuple[int, int]], *, images: int, channels: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(images, channels, height, width) for height, width in sizes]
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


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
    levels = make_levels(sizes, images=2, channels=in_channels)
    if relu:
        levels = [level.relu() for level in levels]
    # Sums of few terms may cancel to nearly nothing, beside which rounding is large.
    allowed = (2 if in_channels > 2 else 6) * ROUNDING
    for tensor in (weight, bias, *levels):
        tensor.requires_grad_()
    outputs = winograd_convolve(levels, weight, bias, relu=relu, gated=relu)
    expected = [F.conv2d(x.double(), weight.double(), bias.double(), padding=1) for x in levels]
    given = [torch.randn(y.shape, generator=generator).bfloat16() for y in outputs]
    for output, reference in zip(outputs, expected, strict=True):
        assert output.dtype == torch.bfloat16
        assert output.is_contiguous(memory_format=torch.channels_last)
        # The reference's ReLU opens where ours does: near zero rounding decides.
        assert distance(output, reference * (output > 0 if relu else 1)) < allowed
    sources = [weight, bias, *levels]
    gradients = torch.autograd.grad(outputs, sources, given)
    references = torch.autograd.grad(expected, sources, [each.double() for each in given])
    for source, value, reference in zip(sources, gradients, references, strict=True):
        is_gated = relu and source.dtype == torch.bfloat16
        assert distance(value, reference.double() * (source > 0 if is_gated else 1)) < allowed


@needs_bf16
def test_relu_lets_through_what_is_positive_only() -> None:
    [level] = make_levels([(9, 9)], images=2, channels=16)
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
@pytest.mark.usefixtures("threads_restored")
def test_threads_and_repetition_change_nothing() -> None:
    levels = make_levels([(24, 24), (12, 12)], images=2, channels=64)
    weight = torch.randn(64, 64, 3, 3).requires_grad_()
    bias = torch.zeros(64)
    results = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        outputs = winograd_convolve(levels, weight, bias, relu=True)
        gradients = torch.autograd.grad(outputs, weight, [torch.ones_like(y) for y in outputs])
        results.append([*outputs, *gradients])
    assert_equal(*results)


@needs_bf16
@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize(("in_channels", "out_channels"), [(300, 90), (40, 600)])
def test_many_threads_share_the_channels_of_small_maps(in_channels: int, out_channels: int) -> None:
    levels = make_levels([(9, 7), (2, 3)], images=2, channels=in_channels)
    weight = torch.randn(out_channels, in_channels, 3, 3)
    bias = torch.randn(out_channels)
    sources = [tensor.requires_grad_() for tensor in (weight, bias, *levels)]
    results = []
    for threads in (1, 2, 7, 16):
        torch.set_num_threads(threads)
        outputs = winograd_convolve(levels, weight, bias, relu=True)
        gradients = torch.autograd.grad(outputs, sources, [torch.ones_like(y) for y in outputs])
        results.append([*outputs, *gradients])
    assert_equal(*results)


@needs_bf16
@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("out_channels", [16, 600])
def test_weight_gradient_shared_by_many_threads(out_channels: int) -> None:
    """With many threads, each computes a part of the pixels, and a block of many channels."""
    sizes = [(41, 33), (20, 17), (9, 5)]
    maps = make_levels(sizes, images=2, channels=40)
    given = make_levels(sizes, images=2, channels=out_channels)
    torch.set_num_threads(7)
    first, again = (
        winograd.weight_gradient(
            [winograd.channels_last(level) for level in maps],
            [winograd.channels_last(level) for level in given],
        )[0]
        for _ in range(2)
    )
    weight = torch.zeros(out_channels, 40, 3, 3, dtype=torch.float64, requires_grad=True)
    outputs = [F.conv2d(level.double(), weight, padding=1) for level in maps]
    [expected] = torch.autograd.grad(outputs, weight, [gradient.double() for gradient in given])
    assert distance(first, expected) < 2 * ROUNDING
    assert torch.equal(first, again)


@needs_bf16
@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("threads", [1, 7])
@pytest.mark.parametrize("pixels", [[], [(0, 0)], [(-1, -1)], [(4, 5)], [(0, -1), (3, 3), (8, 0)]])
def test_gradients_that_are_zero_nearly_everywhere(
    pixels: list[tuple[int, int]], threads: int
) -> None:
    """As those of boxes are, but around the objects; zeros are not multiplied."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(7)
    sizes = [(9, 11), (4, 6)]
    levels = make_levels(sizes, images=2, channels=40)
    weight = torch.randn(70, 40, 3, 3, generator=generator)
    bias = torch.zeros(70)
    sources = [tensor.requires_grad_() for tensor in (weight, bias, *levels)]
    outputs = winograd_convolve(levels, weight, bias)
    expected = [F.conv2d(x.double(), weight.double(), bias.double(), padding=1) for x in levels]
    given = [torch.zeros_like(output) for output in outputs]
    for y, x in pixels:
        given[0][1, 69:, y, x] = torch.randn(1, generator=generator)
    # The memory of freed tensors is what results are written to.
    [torch.full_like(level, torch.nan) for level in levels]
    gradients = torch.autograd.grad(outputs, sources, given)
    references = torch.autograd.grad(expected, sources, [each.double() for each in given])
    for value, reference in zip(gradients, references, strict=True):
        assert (value - reference).norm() <= 3 * ROUNDING * reference.norm()


@needs_bf16
def test_nan_spreads_no_further_than_its_tiles() -> None:
    [level] = make_levels([(8, 8)], images=1, channels=16)
    level[0, 3, 0, 0] = float("nan")
    [output] = winograd_convolve([level], torch.randn(8, 16, 3, 3), torch.zeros(8), relu=True)
    assert output[0, :, 0, 0].isnan().all()
    assert output[0, :, 4:, 4:].isfinite().all()


@needs_bf16
def test_only_needed_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    [level] = make_levels([(8, 8)], images=1, channels=16)
    weight = torch.randn(8, 16, 3, 3, requires_grad=True)
    [output] = winograd_convolve([level], weight, torch.zeros(8), relu=False)
    monkeypatch.setattr(winograd, "convolve_levels", None)  # would fail if it were called
    [gradient] = torch.autograd.grad(output, weight, torch.ones_like(output))
    assert gradient.isfinite().all()


@pytest.mark.skipif(HAS_BF16, reason="the processor has AVX-512 BF16")
def test_a_processor_without_bf16_uses_onednn() -> None:
    assert not choose_winograd("auto")
    with pytest.raises(InputError, match=r"engine\.convolutions: winograd is not available"):
        choose_winograd("winograd")


def test_auto_uses_onednn_with_amx_or_without_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winograd, "cpu_flags", lambda: {"avx512_bf16", "amx_bf16"})
    assert not choose_winograd("auto")
    monkeypatch.setattr(winograd, "cpu_flags", lambda: {"avx2"})
    assert not choose_winograd("auto")
    assert not choose_winograd("onednn")
