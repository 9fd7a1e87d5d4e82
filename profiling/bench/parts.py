"""The focal loss in all its forms, against each other and against the memory's bandwidth.

TODO-DOC The optimizers' steps, in few passes over memory and tensor by tensor; the gradients' norm.

TODO-DOC Evaluation: post-processing alone, and the whole way from images to boxes.
"""

from statistics import median

from profiling.bench.results import RECIPES, Benchmark, Finding, Results, speed_up
from profiling.bench.variant import Variant

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


def loss_contestant(form: str, dtype: str) -> Variant:
    """A form on logits of a dtype; BF16 is what goes without saying, and who runs by default."""
    suffix = "" if dtype == "bfloat16" else f"-{dtype}"
    return Variant(
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
        *(loss_contestant(form, "bfloat16") for form in FORMS),
        *(loss_contestant(form, "float32") for form in FORMS),
        Variant(
            name="reference-system",
            about="reference, but memory as the C library has it",
            recipe=f"{RECIPES}.focal_loss",
            allocator="system",
            options={"form": "reference", "dtype": "bfloat16"},
            by_default=False,
        ),
        Variant(
            name=BANDWIDTH,
            about="what is possible: large copies in memory",
            recipe=f"{RECIPES}.bandwidth",
        ),
    ),
)

NAMES = ("adam", "sgd", "lamb")


def optimizer_contestant(name: str, *, fused: bool) -> Variant:
    """An optimizer in one of its two forms."""
    return Variant(
        name=name if fused else f"{name}-unfused",
        about=f"{name}, {'as train.py runs it' if fused else 'tensor by tensor (foreach=False)'}",
        recipe=f"{RECIPES}.optimizer_step",
        options={"name": name, "fused": fused},
    )


def norm_contestant(*, clips: bool) -> Variant:
    """What comes before an optimizer's step."""
    return Variant(
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
        *(optimizer_contestant(name, fused=fused) for name in NAMES for fused in (True, False)),
        *(norm_contestant(clips=clips) for clips in (False, True)),
    ],
)


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
        Variant(
            name="postprocess",
            about="our post-processing of a trained detector's outputs",
            recipe=f"{RECIPES}.postprocessing",
            options={"whose": "ours"},
        ),
        Variant(
            name="postprocess-torchvision",
            about="torchvision's of the same",
            recipe=f"{RECIPES}.postprocessing",
            options={"whose": "torchvision"},
        ),
        Variant(
            name="torchvision",
            about="its RetinaNet's whole step as a user runs it: BF16 autocast, channels_last",
            recipe=f"{RECIPES}.evaluation",
            allocator="system",
            options={"whose": "torchvision"},
        ),
        Variant(
            name="torchvision-tuned",
            about="the same under our memory policy",
            recipe=f"{RECIPES}.evaluation",
            options={"whose": "torchvision"},
        ),
        Variant(
            name="torch",
            about="our whole step, as train.py evaluates",
            recipe=f"{RECIPES}.evaluation",
            options={"whose": "ours"},
        ),
    ),
)
