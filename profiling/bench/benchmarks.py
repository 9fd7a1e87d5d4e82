"""The benchmarks with variants: `step`, `loss`, `optimizer` and `evaluate`.

- `step`: a training step; torchvision's, ours, and ours with one thing taken away.
- `loss`: the focal loss in all its forms, beside the memory's bandwidth.
- `optimizer`: steps in few passes over memory and tensor by tensor, and the gradients' norm.
- `evaluate`: post-processing alone, and the whole way from images to boxes.
"""

from statistics import median
from typing import Any

from common.machine import cpu_flags
from profiling.bench.results import CEILING, RECIPES, Benchmark, Finding, Results, speed_up
from profiling.bench.variant import Variant

COMPILE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""In the variant's own process, so that nothing is left when it ends."""

COMPILE_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def ours(name: str, about: str, *, by_default: bool = True, **fields: Any) -> Variant:
    """Return a variant that runs our step, pinned; `fields` are further ones of `Variant`."""
    recipe = f"{RECIPES}.step_torch"
    return Variant(name, about, recipe, pinned=True, by_default=by_default, **fields)


def without(name: str, about: str, **fields: Any) -> Variant:
    """Return the torch engine with one switch the other way."""
    return ours(f"torch-{name}", f"torch, but {about}", by_default=False, **fields)


def best_convolution(results: Results) -> tuple[str, float]:
    """The name and the GFLOP/s of the fastest of the ceiling's convolutions."""
    rates = results.details(CEILING)
    convolutions = {name: rate for name, rate in rates.items() if "matrix" not in name}
    best = max(convolutions, key=lambda name: convolutions[name])
    return best, convolutions[best]


def ceiling_findings(results: Results) -> list[Finding]:
    """The rates that the step's rate is held against."""
    if CEILING not in results.names:
        return []
    name, rate = best_convolution(results)
    rates = results.details(CEILING)
    product = next(key for key in rates if key.startswith("matrix product"))
    return [
        Finding(f"best large convolution: {name}", rate, f"{rate:,.0f} GFLOP/s"),
        Finding(product, rates[product], f"{rates[product]:,.0f} GFLOP/s"),
    ]


SUBJECT = "torch"


def has_amx() -> bool:
    """Whether the processor has tiles for BF16, which change what is possible."""
    return "amx_bf16" in cpu_flags()


WANTED_WITH_AMX = {"torchvision": 7.0, "torchvision-tuned": 3.2, "ipex": 2.0}
"""Times as fast that the subject is to be, at least."""

WANTED = {"torchvision": 4.5, "torchvision-tuned": 1.4, "ipex": 1.7}


def wanted_of(other: str) -> float | None:
    """How many times as fast as another variant the subject is to be on this processor."""
    return (WANTED_WITH_AMX if has_amx() else WANTED).get(other)


SHARE_OF_CEILING, SHARE_OF_CEILING_WITH_AMX = 0.75, 0.60
"""Of the best convolution's rate. Tiles are so fast that memory bounds more of a step."""


def share_of_ceiling(results: Results, subject: str) -> Finding:
    """Round by round, as all that is compared."""
    best, _ = best_convolution(results)
    gflop = results.facts[CEILING]["step_gflop"]
    rounds = zip(results.runs[subject], results.runs[CEILING], strict=True)
    share = median(gflop / step.seconds / limit.details[best] for step, limit in rounds)
    return Finding(
        f"{subject}: GFLOP/s of the step over those of the best large convolution",
        share,
        f"{share:.2f}",
        at_least=SHARE_OF_CEILING_WITH_AMX if has_amx() else SHARE_OF_CEILING,
    )


ONEDNN_ALONE = "torch-onednn"
"""The subject without convolutions of our own."""

MOST_BESIDE_LOAD = 2.3
"""Times as long, with one of two cores kept busy: the team of threads waits for the slower core."""


def load_findings(results: Results, subject: str) -> list[Finding]:
    """Return how much longer each variant's step takes while a process keeps a core busy."""
    findings = []
    for name in results.loaded_runs:
        if name == CEILING:
            continue
        ratio = results.slowdown(name)
        findings.append(
            Finding(
                f"{name}: a step while another process keeps one core busy",
                ratio.median,
                f"{ratio.median:.2f} times as long ({ratio.lowest:.2f}–{ratio.highest:.2f})",
                at_most=MOST_BESIDE_LOAD if name == subject else None,
            )
        )
    return findings


def share_findings(results: Results, subject: str) -> list[Finding]:
    """Return how much of the step is convolution and passes over memory, where it was measured."""
    shares = []
    if subject in results.primitives:
        what = "share of the step in convolutions and matrix products, oneDNN's and ours"
        shares.append((f"{subject}: {what}", results.primitives[subject].convolving_share))
    if ONEDNN_ALONE in results.primitives:
        what = "share of the step in oneDNN's convolutions and matrix products"
        shares.append((f"{ONEDNN_ALONE}: {what}", results.primitives[ONEDNN_ALONE].onednn_share))
    findings = [Finding(what, share, f"{share:.1%}", at_least=0.9) for what, share in shares]
    passes = results.passes_share(subject)
    if passes is not None:
        what = f"{subject}: share of the step in ReLU, sums, masks, casts and reorders"
        findings.append(Finding(what, passes, f"{passes:.1%}", at_most=0.07))
    return findings


BASELINE = "torchvision-tuned"
"""The variant that memory and traffic are compared with: it has the same allocator."""


def memory_findings(results: Results, subject: str) -> list[Finding]:
    """Return page faults; peak memory and bytes moved against torchvision's, if that was run."""
    faults = results.page_faults(subject)
    what = f"{subject}: page faults a step"
    findings = [Finding(what, faults, f"{faults:,.0f}", at_most=5000)]
    if BASELINE not in results.names or subject == BASELINE:
        return findings
    share = results.peak_mb(subject) / results.peak_mb(BASELINE)
    what = f"{subject}: peak memory against {BASELINE}"
    findings.append(Finding(what, share, f"{share:.2f}", at_most=0.4))
    moved, other = results.gigabytes(subject), results.gigabytes(BASELINE)
    if moved and other:
        what = f"{subject}: bytes that operators read and write against {BASELINE}"
        shown = f"{moved / other:.2f} ({moved:.1f} of {other:.1f} GB)"
        findings.append(Finding(what, moved / other, shown, at_most=0.4))
    return findings


def step_findings(results: Results) -> list[Finding]:
    """Compare our step with the others', and with what the machine can do."""
    names = [name for name in results.names if name != CEILING]
    if not names:
        return ceiling_findings(results)
    subject = SUBJECT if SUBJECT in names else names[0]
    findings = []
    for other in names:
        if other != subject:
            wanted = wanted_of(other) if subject == SUBJECT else None
            findings += speed_up(results, subject, other, at_least=wanted)
    findings += ceiling_findings(results)
    if CEILING in results.names:
        compared = [name for name in dict.fromkeys((subject, ONEDNN_ALONE)) if name in names]
        findings += [share_of_ceiling(results, name) for name in compared]
    return [
        *findings,
        *load_findings(results, subject),
        *share_findings(results, subject),
        *memory_findings(results, subject),
    ]


STEP = Benchmark(
    name="step",
    about="a training step: forward, loss, backward, optimizer",
    rounds=5,
    warm_up=3,
    uses_onednn=True,
    beside_load=True,
    counts_bytes=True,
    findings=step_findings,
    variants=(
        Variant(
            "torchvision",
            "its RetinaNet as a user runs it: BF16 autocast, channels_last, Adam",
            f"{RECIPES}.step_torchvision",
            allocator="system",
        ),
        Variant(
            "torchvision-tuned", "the same under our memory policy", f"{RECIPES}.step_torchvision"
        ),
        # IPEX puts a fused step of its own in the place of torch's plain Adam.
        ours(
            "ipex",
            "the paper's path: our model through ipex.optimize",
            package="intel_extension_for_pytorch",
            options={"engine": "ipex", "fused_adam": False},
        ),
        ours("torch", "ours on stock PyTorch, as train.py runs it"),
        ours(
            ONEDNN_ALONE,
            "torch, but every convolution is oneDNN's",
            options={"convolutions": "onednn"},
        ),
        without("system", "memory as the C library has it", allocator="system"),
        without("tcmalloc", "memory from tcmalloc", allocator="tcmalloc"),
        without("jemalloc", "memory from jemalloc", allocator="jemalloc"),
        without("unfolded", "torchvision's modules under autocast", options={"folded": False}),
        without("reference-loss", "torchvision's focal loss", options={"focal_form": "reference"}),
        without("paper-loss", "the paper's focal loss", options={"focal_form": "paper"}),
        without("unfused-adam", "Adam tensor by tensor", options={"fused_adam": False}),
        without("fused-adam", "torch's own fused Adam", options={"torch_adam": True}),
        ours(
            "torch-compiled",
            "our model and loss, but torch.compile runs the model (compiles for minutes)",
            environment=COMPILE,
            cache_variable=COMPILE_CACHE,
            options={"compiled": True},
            by_default=False,
        ),
        Variant(
            "torchvision-compiled",
            "torchvision-tuned through torch.compile (compiles for minutes)",
            f"{RECIPES}.step_torchvision",
            environment=COMPILE,
            cache_variable=COMPILE_CACHE,
            options={"compiled": True},
            by_default=False,
        ),
        Variant(
            "ipex-submission",
            "IPEX as in Intel's submission: plain weights, tcmalloc, Intel's OpenMP",
            f"{RECIPES}.step_submission",
            allocator="tcmalloc",
            package="intel_extension_for_pytorch",
            pinned=True,
            needs_intel_openmp=True,
            environment={"KMP_BLOCKTIME": "1"},
            by_default=False,
        ),
        Variant(
            CEILING,
            "what is possible: the network's large convolutions, and a matrix product",
            f"{RECIPES}.ceiling",
        ),
    ),
)


def step_gflops(results: Results, name: str) -> float | None:
    """Return GFLOP/s of a variant's whole step; None where the arithmetic was not counted."""
    if CEILING not in results.names or name == CEILING:
        return None
    return results.facts[CEILING]["step_gflop"] / results.seconds(name)


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


def loss_variant(form: str, dtype: str) -> Variant:
    """A form on logits of a dtype; BF16 is what goes without saying, and who runs by default."""
    suffix = "" if dtype == "bfloat16" else f"-{dtype}"
    return Variant(
        f"{form.replace('_', '-')}{suffix}",
        f"{FORMS[form]}; {dtype} logits",
        f"{RECIPES}.focal_loss",
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
        Finding(f"memory bandwidth: {name}", rate, f"{rate / 1e9:.1f} GB/s")
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
                f"{name}: bytes moved a second over those of a copy",
                share,
                f"{share:.2f}",
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
    variants=(
        *(loss_variant(form, "bfloat16") for form in FORMS),
        *(loss_variant(form, "float32") for form in FORMS),
        Variant(
            "reference-system",
            "reference, but memory as the C library has it",
            f"{RECIPES}.focal_loss",
            allocator="system",
            options={"form": "reference", "dtype": "bfloat16"},
            by_default=False,
        ),
        Variant(BANDWIDTH, "what is possible: large copies in memory", f"{RECIPES}.bandwidth"),
    ),
)

NAMES = ("adam", "sgd", "lamb")


def optimizer_variant(name: str, *, fused: bool) -> Variant:
    """An optimizer in one of its two forms."""
    return Variant(
        name if fused else f"{name}-unfused",
        f"{name}, {'as train.py runs it' if fused else 'tensor by tensor (foreach=False)'}",
        f"{RECIPES}.optimizer_step",
        options={"name": name, "fused": fused},
    )


def norm_variant(*, clips: bool) -> Variant:
    """What comes before an optimizer's step."""
    return Variant(
        "clipping" if clips else "norm",
        "the norm of all gradients" + (", and their clipping" if clips else ""),
        f"{RECIPES}.gradient_norm",
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
    variants=[
        *(optimizer_variant(name, fused=fused) for name in NAMES for fused in (True, False)),
        *(norm_variant(clips=clips) for clips in (False, True)),
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
    variants=(
        Variant(
            "postprocess",
            "our post-processing of a trained detector's outputs",
            f"{RECIPES}.postprocessing",
            options={"whose": "ours"},
        ),
        Variant(
            "postprocess-torchvision",
            "torchvision's of the same",
            f"{RECIPES}.postprocessing",
            options={"whose": "torchvision"},
        ),
        Variant(
            "torchvision",
            "its RetinaNet's whole step as a user runs it: BF16 autocast, channels_last",
            f"{RECIPES}.evaluation",
            allocator="system",
            options={"whose": "torchvision"},
        ),
        Variant(
            "torchvision-tuned",
            "the same under our memory policy",
            f"{RECIPES}.evaluation",
            options={"whose": "torchvision"},
        ),
        Variant(
            "torch",
            "our whole step, as train.py evaluates",
            f"{RECIPES}.evaluation",
            options={"whose": "ours"},
        ),
    ),
)
