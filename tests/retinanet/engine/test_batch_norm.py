"""Batch norms that train, by our kernel, against torch's in float64."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from common.native import usable_instruction_sets
from retinanet.engine.norm_relu import BATCH_NORM, batch_norm
from tests.retinanet.engine.kernels import BF16_ROUNDING

SHAPES = [(2, 64, 9, 7), (1, 5, 3, 1), (8, 33, 16, 16), (2, 1, 1, 1)]


@pytest.fixture(autouse=True, params=["best", "plainest"])
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plainest":
        monkeypatch.setattr(BATCH_NORM, "instruction_set", usable_instruction_sets()[-1])
    assert BATCH_NORM.are_available()


def make_norm(channels: int) -> nn.BatchNorm2d:
    torch.manual_seed(1)
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
    return norm


def maps_of(shape: tuple[int, ...], *, seed: int = 0, mean: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(shape, generator=generator) + mean
    return made.bfloat16().contiguous(memory_format=torch.channels_last)


def relative_error(value: Tensor, wanted: Tensor) -> float:
    return float((value.double() - wanted).norm() / (wanted.norm() + 1e-6))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("with_added", "relu"), [(False, False), (False, True), (True, True)])
def test_results_gradients_and_statistics_are_torchs(
    shape: tuple[int, ...], with_added: bool, relu: bool
) -> None:
    norm = make_norm(shape[1])
    exact = deepcopy(norm).double()
    maps = maps_of(shape, mean=3.0).requires_grad_()
    added = maps_of(shape, seed=2).requires_grad_() if with_added else None
    result = batch_norm(maps, norm, added, relu=relu)
    assert result.permute(0, 2, 3, 1).is_contiguous()
    sources = [maps.detach().double().requires_grad_(), *exact.parameters()]
    wanted = exact(sources[0])
    if added is not None:
        sources.append(added.detach().double().requires_grad_())
        wanted = wanted + sources[-1]
    # The ReLU opens where ours does: near zero rounding decides. Readers mask the gradient.
    open_ = (result > 0) if relu else torch.ones_like(result, dtype=torch.bool)
    given = torch.randn(shape, generator=torch.Generator().manual_seed(3)).bfloat16() * open_
    ours = [maps, *norm.parameters(), *([added] if added is not None else [])]
    found = torch.autograd.grad(result, ours, given)
    references = torch.autograd.grad(wanted, sources, given.double())
    assert relative_error(result, wanted * open_) < BF16_ROUNDING
    scale = max(reference.norm() for reference in references)
    for value, reference in zip(found, references, strict=True):
        assert (value.double() - reference).norm() <= BF16_ROUNDING * (
            reference.norm() + 1e-2 * scale
        )
    for name, statistic in norm.named_buffers():
        torch.testing.assert_close(
            statistic.double(), exact.get_buffer(name).double(), rtol=1e-5, atol=1e-6
        )


def test_a_large_mean_leaves_the_variance_exact() -> None:
    maps = (maps_of((4, 8, 16, 16)).float() / 8 + 100).bfloat16()
    norm = make_norm(8)
    batch_norm(maps, norm)
    wanted = 0.9 + 0.1 * maps.double().var((0, 2, 3))
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_var.double(), wanted, rtol=1e-5, atol=0)


def test_threads_change_nothing() -> None:
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        maps = maps_of((3, 40, 17, 13)).requires_grad_()
        result = batch_norm(maps, make_norm(40), relu=True)
        results.append((result, *torch.autograd.grad(result.float().square().sum(), maps)))
    torch.set_num_threads(before)
    assert all(
        torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True)
    )


def test_nan_stays_in_its_channel_and_passes_relu() -> None:
    maps = maps_of((2, 16, 5, 5))
    maps[1, 3, 2, 2] = torch.nan
    result = batch_norm(maps, make_norm(16), relu=True)
    assert result[:, 3].isnan().all()
    assert result.isnan().sum() == result[:, 3].numel()


def test_other_precisions_and_norms_are_torchs() -> None:
    maps = torch.randn(2, 16, 5, 5)
    norm = make_norm(16)
    assert torch.equal(batch_norm(maps, norm, relu=True), deepcopy(norm)(maps).relu())
    plain = nn.BatchNorm2d(16, momentum=None)
    found = batch_norm(maps.bfloat16(), plain)
    assert torch.equal(found, nn.BatchNorm2d(16, momentum=None)(maps.bfloat16()))
