"""Evaluation: post-processing alone, and the whole way from images to boxes."""

from profiling.bench.benchmark import RECIPES, Benchmark
from profiling.bench.contestant import Contestant
from profiling.bench.finding import Finding, speed_up
from profiling.bench.results import Results


def evaluate_findings(results: Results) -> list[Finding]:
    """Ours against torchvision's."""
    findings = speed_up(results, "postprocess", "postprocess-torchvision", at_least=5)
    findings += speed_up(results, "torch", "torchvision")
    return findings + speed_up(results, "torch", "torchvision-tuned")


EVALUATE = Benchmark(
    name="evaluate",
    about="an evaluation step of a batch, and its post-processing alone",
    rounds=9,
    warm_up=4,
    settling=1,
    findings=evaluate_findings,
    contestants=(
        Contestant(
            name="postprocess",
            about="our post-processing of a trained detector's outputs",
            recipe=f"{RECIPES}.postprocessing",
            options={"whose": "ours"},
        ),
        Contestant(
            name="postprocess-torchvision",
            about="torchvision's of the same",
            recipe=f"{RECIPES}.postprocessing",
            options={"whose": "torchvision"},
        ),
        Contestant(
            name="torchvision",
            about="its RetinaNet's whole step as a user runs it: BF16 autocast, channels_last",
            recipe=f"{RECIPES}.evaluation",
            allocator="system",
            options={"whose": "torchvision"},
        ),
        Contestant(
            name="torchvision-tuned",
            about="the same under our memory policy",
            recipe=f"{RECIPES}.evaluation",
            options={"whose": "torchvision"},
        ),
        Contestant(
            name="torch",
            about="our whole step, as train.py evaluates",
            recipe=f"{RECIPES}.evaluation",
            options={"whose": "ours"},
        ),
    ),
)
