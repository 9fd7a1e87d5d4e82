"""A small model trained under torch's profiler, with torch's own sums of the trace."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

CPU = [ProfilerActivity.CPU]


@dataclass(frozen=True)
class Traced:
    """A trace, and torch's own sums of it."""

    file: Path
    self_us: dict[str, float]
    """By operator."""
    calls: dict[str, int]


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding=1),
        nn.Flatten(),
        nn.Linear(4 * 12 * 12, 5),
    )


def traced(file: Path, *, marks: bool = False, modules: bool = False, steps: int = 2) -> Traced:
    """Train for some steps and write their trace.

    `marks`: mark steps, phases and modules as train.py does; `modules`: record them `with_stack`.
    """
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.randn(2, 3, 12, 12), torch.tensor([1, 2])
    around = record_function if marks else nullcontext
    if marks:
        mark_modules(model)

    def train(number: int) -> None:
        with around(f"step {number}"):
            with around("phase: forward"):
                outputs: Tensor = model(images)
            with around("phase: loss"):
                loss = nn.functional.cross_entropy(outputs, labels)
            with around("phase: backward"):
                loss.backward()
            with around("phase: optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    train(0)
    with profile(activities=CPU, with_stack=modules) as profiler:
        for number in range(20, 20 + steps):
            train(number)
    profiler.export_chrome_trace(str(file))
    averages = [item for item in profiler.key_averages() if not item.is_user_annotation]
    return Traced(
        file,
        self_us={item.key: item.self_cpu_time_total for item in averages},
        calls={item.key: item.count for item in averages},
    )


def traced_on_schedule(file: Path) -> None:
    """Write a trace of steps 2 and 3 of torch's own schedule."""
    model = small_model()
    with profile(activities=CPU, schedule=schedule(wait=1, warmup=1, active=2)) as profiler:
        for _ in range(4):
            model(torch.randn(2, 3, 12, 12)).sum().backward()
            profiler.step()
    profiler.export_chrome_trace(str(file))


def mark_modules(model: nn.Module) -> None:
    marks: list[record_function] = []

    def begin(name: str) -> None:
        marks.append(record_function(f"module: {name}"))
        marks[-1].__enter__()

    for name, child in model.named_children():
        child.register_forward_pre_hook(lambda module, inputs, name=name: begin(name))
        child.register_forward_hook(
            lambda module, inputs, outputs: marks.pop().__exit__(None, None, None)
        )
