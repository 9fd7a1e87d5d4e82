from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from retinanet.engine.optimizers import make_optimizer
from retinanet.training.checkpoint import copies, optimizer_state, optimizer_tensors

SLOTS = {
    "adam": {"step", "exp_avg", "exp_avg_sq"},
    "lamb": {"step", "exp_avg", "exp_avg_sq"},
    "sgd": set[str](),
    "sgd with momentum": {"momentum_buffer"},
}
"""What a checkpoint keeps of each parameter."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_model() -> nn.Module:
    """Convolutions in channels_last memory, as a run has them, and one that does not train."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 9, 3), nn.ReLU(), nn.Conv2d(9, 4, 1))
    model[0].requires_grad_(False)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def train(model: nn.Module, optimizer: Optimizer, *, first: int, steps: int) -> None:
    """Steps on images that their numbers give."""
    for step in range(first, first + steps):
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def weights_of(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", ["adam", "lamb", "sgd", "sgd with momentum"])
def test_training_goes_on_bit_for_bit_from_a_file(
    name: str, before: int, fused: bool, tmp_path: Path
) -> None:
    def start() -> tuple[nn.Module, Optimizer]:
        model = make_model()
        return model, make_optimizer(
            model,
            name=name.split(maxsplit=1)[0],
            learning_rate=0.01,
            momentum=0.9 if "momentum" in name else 0.0,
            weight_decay=0.1,
            fused=fused,
        )

    file = tmp_path / "optimizer.safetensors"
    model, optimizer = start()
    train(model, optimizer, first=0, steps=before)
    tensors = copies(optimizer_tensors(model, optimizer))
    assert {key.rpartition("/")[2] for key in tensors} == (SLOTS[name] if before else set())
    assert all(key.startswith(("1.", "3.")) for key in tensors)
    save_file(tensors, file)
    other, its_optimizer = start()
    other.load_state_dict(model.state_dict())
    state = optimizer_state(load_file(file), other, file=file)
    groups = its_optimizer.state_dict()["param_groups"]
    its_optimizer.load_state_dict({"state": state, "param_groups": groups})
    for one, its in ((model, optimizer), (other, its_optimizer)):
        train(one, its, first=before, steps=3)
    assert not torch.equal(weights_of(model)[-1], weights_of(make_model())[-1])
    for found, expected in zip(weights_of(other), weights_of(model), strict=True):
        assert torch.equal(found, expected)
