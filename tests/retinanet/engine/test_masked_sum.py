"""Sums and masks in one pass, value by value against torch's operators one after the other."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from common.native import usable_instruction_sets
from retinanet.engine.norm_relu import MASKED_SUM, add_relu_, masked_sum_

SHAPES = [(2, 24, 37, 41), (1, 3, 1, 1), (2, 5, 7, 1), (3, 1, 2, 2)]
SPECIAL = [float("nan"), -float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-40]


@pytest.fixture(params=usable_instruction_sets())
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel, compiled for each of the instruction sets that this processor has."""
    monkeypatch.setattr(MASKED_SUM, "instruction_set", request.param)
    assert MASKED_SUM.are_available()
    return str(request.param)


@pytest.fixture(params=[1, 3, 8])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def maps(shape: tuple[int, ...], *, count: int) -> list[Tensor]:
    """BF16, channels_last, with special values at places of their own in each."""
    torch.manual_seed(11)
    made = [torch.randn(shape).bfloat16() for _ in range(count)]
    for place, one in enumerate(made):
        values = one.flatten()[place * 7 :: 13]
        values.copy_(torch.tensor(SPECIAL).repeat(len(values) // 8 + 1)[: len(values)])
    return [one.contiguous(memory_format=torch.channels_last) for one in made]


def same(value: Tensor, reference: Tensor) -> bool:
    return torch.equal(value.nan_to_num(7.25), reference.nan_to_num(7.25)) and torch.equal(
        value.isnan(), reference.isnan()
    )


@pytest.mark.usefixtures("instruction_set", "threads")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_sum_is_rounded_once_and_masked_where_relu_closed(
    shape: tuple[int, ...], terms: int
) -> None:
    *given, gate = maps(shape, count=terms + 1)
    total = given[0].float()
    for term in given[1:]:
        total = total + term.float()
    wanted = torch.ops.aten.threshold_backward(total, gate.float(), 0).bfloat16()
    others = [term.clone() for term in given[1:]]
    result = masked_sum_(given, gate)
    assert result is given[0]
    assert same(result, wanted)
    assert all(same(term, other) for term, other in zip(given[1:], others, strict=True))


@pytest.mark.usefixtures("instruction_set", "threads")
@pytest.mark.parametrize("shape", SHAPES)
def test_sum_and_relu_are_torchs(shape: tuple[int, ...]) -> None:
    first, second = maps(shape, count=2)
    wanted = F.relu(first + second)
    assert add_relu_(first, second) is first
    assert same(first, wanted)
    assert wanted.isnan().any() or first.numel() < 8


@pytest.mark.usefixtures("instruction_set")
def test_nothing_is_written_beside_the_maps() -> None:
    size = 2 * 5 * 7 * 3
    memory = torch.full((size + 128,), 3.0).bfloat16()
    inside = memory[64 : 64 + size].view(2, 5, 7, 3)
    masked_sum_([inside, torch.ones_like(inside)], torch.ones_like(inside))
    add_relu_(inside, torch.ones_like(inside))
    assert (memory[64 : 64 + size] == 5).all()
    assert (memory[:64] == 3).all() and (memory[64 + size :] == 3).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_other_layouts_and_precisions_are_torchs(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    first = torch.randn(2, 6, 5, 4).to(dtype)
    second = torch.randn(2, 6, 5, 4).to(dtype).contiguous(memory_format=torch.channels_last)
    gate = torch.randn(2, 6, 5, 4).to(dtype).relu()
    wanted = (first + second) * (gate > 0)
    assert torch.equal(masked_sum_([first.clone(), second], gate), wanted)
    assert torch.equal(add_relu_(first.clone(), second), F.relu(first + second))


def test_without_a_compiler_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, gate = maps((2, 8, 9, 9), count=3)
    by_kernel = masked_sum_([first.clone(), second], gate)
    summed = add_relu_(first.clone(), second)
    monkeypatch.setattr(MASKED_SUM, "are_available", lambda: False)
    assert same(masked_sum_([first.clone(), second], gate), by_kernel)
    assert same(add_relu_(first.clone(), second), summed)
