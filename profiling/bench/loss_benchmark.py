"""The focal loss in all its forms, against each other and against the memory's bandwidth."""

from statistics import median

from profiling.bench.benchmark import RECIPES, Benchmark
from profiling.bench.contestant import Contestant
from profiling.bench.finding import Finding, speed_up
from profiling.bench.results import Results

FORMS = {
    "kernel": "ours: one C++ pass",
    "paper": "the paper's: in place, explicit backward",
    "paper_implicit": "the paper's, backward by autograd",
    "reference": "torchvision's on one-hot targets",
}
BANDWIDTH = "bandwidth"
COPY = "copy"
"""What the memory's bandwidth means here, as in the STREAM benchmark: reading in one place and
writing in another, which is what a loss does with logits and gradients."""


def contestant(form: str, dtype: str) -> Contestant:
    """A form on logits of a dtype; BF16 is what goes without saying, and who runs by default."""
    suffix = "" if dtype == "bfloat16" else f"-{dtype}"
    return Contestant(
        name=f"{form.replace('_', '-')}{suffix}",
        about=f"{FORMS[form]}; {dtype} logits",
        recipe=f"{RECIPES}.focal_loss",
        options={"form": form, "dtype": dtype},
        by_default=dtype == "bfloat16",
    )


def loss_findings(results: Results) -> list[Finding]:
    """Our form against the others on the same logits."""
    findings = speed_up(results, "kernel", "reference", at_least=12)
    findings += speed_up(results, "kernel", "reference-system")
    findings += speed_up(results, "kernel", "paper")
    findings += speed_up(results, "kernel", "paper-implicit")
    findings += speed_up(results, "kernel-float32", "reference-float32")
    return findings + bandwidth_findings(results)


def bandwidth_findings(results: Results) -> list[Finding]:
    """How near the kernel comes to moving its bytes and doing nothing else."""
    if BANDWIDTH not in results.names:
        return []
    rates = results.details(BANDWIDTH)
    findings = [
        Finding(what=f"memory bandwidth: {name}", value=rate, shown=f"{rate / 1e9:.1f} GB/s")
        for name, rate in rates.items()
    ]
    for name in ("kernel", "kernel-float32"):
        if name not in results.names:
            continue
        moved = results.facts[name]["least_bytes"]
        rounds = zip(results.runs[name], results.runs[BANDWIDTH], strict=True)
        share = median(moved / run.seconds / limit.details[COPY] for run, limit in rounds)
        findings.append(
            Finding(
                what=f"{name}: bytes moved a second over those of a copy",
                value=share,
                shown=f"{share:.2f}",
                at_least=0.5 if name == "kernel" else None,
            )
        )
    return findings


LOSS = Benchmark(
    name="loss",
    about="the focal loss of a batch, forward and backward",
    rounds=9,
    warm_up=5,
    settling=1,
    findings=loss_findings,
    contestants=(
        *(contestant(form, "bfloat16") for form in FORMS),
        *(contestant(form, "float32") for form in FORMS),
        Contestant(
            name="reference-system",
            about="reference, but memory as the C library has it",
            recipe=f"{RECIPES}.focal_loss",
            allocator="system",
            options={"form": "reference", "dtype": "bfloat16"},
            by_default=False,
        ),
        Contestant(
            name=BANDWIDTH,
            about="what is possible: large copies in memory",
            recipe=f"{RECIPES}.bandwidth",
        ),
    ),
)
