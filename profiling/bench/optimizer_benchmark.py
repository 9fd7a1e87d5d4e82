"""The optimizers' steps, in few passes over memory and tensor by tensor; the gradients' norm."""

from profiling.bench.benchmark import RECIPES, Benchmark
from profiling.bench.contestant import Contestant
from profiling.bench.finding import Finding, speed_up
from profiling.bench.results import Results

NAMES = ("adam", "sgd", "lamb")


def contestant(name: str, *, fused: bool) -> Contestant:
    """An optimizer in one of its two forms."""
    return Contestant(
        name=name if fused else f"{name}-unfused",
        about=f"{name}, {'as train.py runs it' if fused else 'tensor by tensor (foreach=False)'}",
        recipe=f"{RECIPES}.optimizer_step",
        options={"name": name, "fused": fused},
    )


def norm_contestant(*, clips: bool) -> Contestant:
    """What comes before an optimizer's step."""
    return Contestant(
        name="clipping" if clips else "norm",
        about="the norm of all gradients" + (", and their clipping" if clips else ""),
        recipe=f"{RECIPES}.gradient_norm",
        options={"clips": clips},
    )


def optimizer_findings(results: Results) -> list[Finding]:
    """Each optimizer against its own plain form."""
    wanted = {"adam": 2.0, "lamb": 2.0}
    findings = []
    for name in NAMES:
        findings += speed_up(results, name, f"{name}-unfused", at_least=wanted.get(name))
    return findings


OPTIMIZER = Benchmark(
    name="optimizer",
    about="an optimizer's step over the detector's weights, and the norm before it",
    rounds=15,
    warm_up=5,
    settling=1,
    findings=optimizer_findings,
    contestants=[
        *(contestant(name, fused=fused) for name in NAMES for fused in (True, False)),
        *(norm_contestant(clips=clips) for clips in (False, True)),
    ],
)
