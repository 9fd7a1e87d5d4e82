"""What can be benchmarked, and by whom. A contestant is one entry here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.bench.contestant import Contestant
from profiling.bench.finding import Finding
from profiling.bench.results import Results
from profiling.bench.step_findings import CEILING, step_findings

RECIPES = "profiling.bench.recipes"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One of `python -m profiling bench`'s subjects."""

    name: str
    about: str
    contestants: Sequence[Contestant]
    findings: Callable[[Results], list[Finding]]
    uses_onednn: bool = False
    """Whether time inside oneDNN's primitives says something."""


STEP = Benchmark(
    name="step",
    about="a training step: forward, loss, backward, optimizer",
    contestants=(
        Contestant(
            name="torchvision",
            about="its RetinaNet as a user runs it: BF16 autocast, channels_last, Adam",
            recipe=f"{RECIPES}.step_torchvision",
            allocator="system",
        ),
        Contestant(
            name="torchvision-tuned",
            about="the same under our memory policy",
            recipe=f"{RECIPES}.step_torchvision",
        ),
        Contestant(
            name="torch",
            about="ours on stock PyTorch, as train.py runs it",
            recipe=f"{RECIPES}.step_torch",
        ),
        Contestant(
            name="torch-system",
            about="ours without the memory policy",
            recipe=f"{RECIPES}.step_torch",
            allocator="system",
            by_default=False,
        ),
        Contestant(
            name=CEILING,
            about="the network's large convolutions alone and a matrix product: what is possible",
            recipe=f"{RECIPES}.ceiling",
        ),
    ),
    findings=step_findings,
    uses_onednn=True,
)

BENCHMARKS = (STEP,)
