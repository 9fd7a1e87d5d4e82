"""Sums, masks and batch norms in one pass over the maps, against torch's operators."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.native import usable_instruction_sets
from retinanet.engine.norm_relu import BATCH_NORM, MASKED_SUM, add_relu_, batch_norm, masked_sum_
from tests.retinanet.engine.kernels import BF16_ROUNDING, assert_equal

INSTRUCTION_SETS = usable_instruction_sets()
SUM_SHAPES = [(2, 24, 37, 41), (1, 3, 1, 1), (2, 5, 7, 1), (3, 1, 2, 2)]
NORM_SHAPES = [(2, 64, 9, 7), (1, 5, 3, 1), (8, 33, 16, 16), (2, 1, 1, 1)]
SPECIAL = [float("nan"), -float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-40]


@pytest.fixture(params=INSTRUCTION_SETS)
def sum_instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MASKED_SUM, "instruction_set", request.param)
    assert MASKED_SUM.are_available()


@pytest.fixture(params=[INSTRUCTION_SETS[0], INSTRUCTION_SETS[-1]])
def norm_instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BATCH_NORM, "instruction_set", request.param)
    assert BATCH_NORM.are_available()


def special_maps(shape: tuple[int, ...], *, count: int) -> list[Tensor]:
    """Return BF16 maps in channels_last memory, with special values at other places in each."""
    torch.manual_seed(11)
    maps = [torch.randn(shape).bfloat16() for _ in range(count)]
    for place, tensor in enumerate(maps):
        values = tensor.flatten()[place * 7 :: 13]
        values.copy_(torch.tensor(SPECIAL).repeat(len(values) // 8 + 1)[: len(values)])
    return [tensor.contiguous(memory_format=torch.channels_last) for tensor in maps]


def are_equal(value: Tensor, reference: Tensor) -> bool:
    """Whether the values are equal; NaN equals NaN."""
    return torch.equal(value.nan_to_num(7.25), reference.nan_to_num(7.25)) and torch.equal(
        value.isnan(), reference.isnan()
    )


@pytest.mark.usefixtures("sum_instructions", "threads_restored")
@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("shape", SUM_SHAPES)
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_sum_is_rounded_once_and_masked_where_relu_closed(
    shape: tuple[int, ...], terms: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    *given, gate = special_maps(shape, count=terms + 1)
    total = given[0].float()
    for term in given[1:]:
        total = total + term.float()
    expected = torch.ops.aten.threshold_backward(total, gate.float(), 0).bfloat16()
    others = [term.clone() for term in given[1:]]
    result = masked_sum_(given, gate)
    assert result is given[0]
    assert are_equal(result, expected)
    assert all(are_equal(term, other) for term, other in zip(given[1:], others, strict=True))


@pytest.mark.usefixtures("sum_instructions", "threads_restored")
@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("shape", SUM_SHAPES)
def test_sum_with_relu_is_torchs(shape: tuple[int, ...], threads: int) -> None:
    torch.set_num_threads(threads)
    first, second = special_maps(shape, count=2)
    expected = F.relu(first + second)
    assert add_relu_(first, second) is first
    assert are_equal(first, expected)
    assert expected.isnan().any() or first.numel() < 8


@pytest.mark.usefixtures("sum_instructions")
def test_nothing_is_written_beside_the_maps() -> None:
    size = 2 * 5 * 7 * 3
    memory = torch.full((size + 128,), 3.0).bfloat16()
    inside = memory[64 : 64 + size].view(2, 5, 7, 3)
    masked_sum_([inside, torch.ones_like(inside)], torch.ones_like(inside))
    add_relu_(inside, torch.ones_like(inside))
    assert (memory[64 : 64 + size] == 5).all()
    assert (memory[:64] == 3).all() and (memory[64 + size :] == 3).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_sums_of_other_layouts_and_precisions_are_torchs(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    first, second, gate = (torch.randn(2, 6, 5, 4).to(dtype) for _ in range(3))
    second = second.contiguous(memory_format=torch.channels_last)
    expected = (first + second) * (gate > 0)
    assert torch.equal(masked_sum_([first.clone(), second], gate.relu()), expected)
    assert torch.equal(add_relu_(first.clone(), second), F.relu(first + second))


def test_without_a_compiler_sums_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, gate = special_maps((2, 8, 9, 9), count=3)
    by_kernel = masked_sum_([first.clone(), second], gate)
    summed = add_relu_(first.clone(), second)
    monkeypatch.setattr(MASKED_SUM, "are_available", lambda: False)
    assert are_equal(masked_sum_([first.clone(), second], gate), by_kernel)
    assert are_equal(add_relu_(first.clone(), second), summed)


def make_norm(channels: int) -> nn.BatchNorm2d:
    torch.manual_seed(1)
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
    return norm


def make_maps(shape: tuple[int, ...], *, seed: int = 0, mean: float = 0.0) -> Tensor:
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + mean
    return maps.bfloat16().contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("norm_instructions")
@pytest.mark.parametrize("shape", NORM_SHAPES, ids=str)
@pytest.mark.parametrize(("with_added", "relu"), [(False, False), (False, True), (True, True)])
def test_results_gradients_and_statistics_of_norms_are_torchs(
    shape: tuple[int, ...], with_added: bool, relu: bool
) -> None:
    norm = make_norm(shape[1])
    exact = deepcopy(norm).double()
    maps = make_maps(shape, mean=3.0).requires_grad_()
    added = make_maps(shape, seed=2).requires_grad_() if with_added else None
    result = batch_norm(maps, norm, added, relu=relu)
    assert result.permute(0, 2, 3, 1).is_contiguous()
    sources = [maps.detach().double().requires_grad_(), *exact.parameters()]
    expected = exact(sources[0])
    if added is not None:
        sources.append(added.detach().double().requires_grad_())
        expected = expected + sources[-1]
    # The ReLU opens where ours does: near zero rounding decides. Readers mask the gradient.
    is_open = (result > 0) if relu else torch.ones_like(result, dtype=torch.bool)
    given = torch.randn(shape, generator=torch.Generator().manual_seed(3)).bfloat16() * is_open
    inputs = [maps, *norm.parameters(), *([added] if added is not None else [])]
    gradients = torch.autograd.grad(result, inputs, given)
    references = torch.autograd.grad(expected, sources, given.double())
    expected = (expected * is_open).detach()
    # A map of one pixel an image has results near zero.
    assert (result - expected).norm() < BF16_ROUNDING * (expected.norm() + 1e-6)
    scale = max(reference.norm() for reference in references)
    for value, reference in zip(gradients, references, strict=True):
        assert (value.double() - reference).norm() <= BF16_ROUNDING * (
            reference.norm() + 1e-2 * scale
        )
    for name, statistic in norm.named_buffers():
        torch.testing.assert_close(
            statistic.double(), exact.get_buffer(name).double(), rtol=1e-5, atol=1e-6
        )


@pytest.mark.usefixtures("norm_instructions")
def test_a_large_mean_leaves_the_variance_exact() -> None:
    maps = (make_maps((4, 8, 16, 16)).float() / 8 + 100).bfloat16()
    norm = make_norm(8)
    batch_norm(maps, norm)
    expected = 0.9 + 0.1 * maps.double().var((0, 2, 3))
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_var.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.usefixtures("norm_instructions", "threads_restored")
def test_threads_do_not_change_norms() -> None:
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        maps = make_maps((3, 40, 17, 13)).requires_grad_()
        result = batch_norm(maps, make_norm(40), relu=True)
        results.append((result, *torch.autograd.grad(result.float().square().sum(), maps)))
    assert_equal(*results)


@pytest.mark.usefixtures("norm_instructions")
def test_nan_stays_in_its_channel_and_passes_relu() -> None:
    maps = make_maps((2, 16, 5, 5))
    maps[1, 3, 2, 2] = torch.nan
    result = batch_norm(maps, make_norm(16), relu=True)
    assert result[:, 3].isnan().all()
    assert result.isnan().sum() == result[:, 3].numel()


def test_other_precisions_and_norms_are_torchs() -> None:
    maps = torch.randn(2, 16, 5, 5)
    norm = make_norm(16)
    assert torch.equal(batch_norm(maps, norm, relu=True), deepcopy(norm)(maps).relu())
    none = maps[:0].bfloat16()
    assert torch.equal(batch_norm(none, make_norm(16), relu=True), make_norm(16)(none).relu())
    plain = nn.BatchNorm2d(16, momentum=None)
    result = batch_norm(maps.bfloat16(), plain)
    assert torch.equal(result, nn.BatchNorm2d(16, momentum=None)(maps.bfloat16()))
