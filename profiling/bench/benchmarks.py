"""The benchmarks with variants: `step`, `loss`, `optimizer`, `evaluate` and `predict`.

- `step`: a training step; torchvision's, ours, and ours with one thing taken away.
- `loss`: the focal loss in all its forms, beside the memory's bandwidth.
- `optimizer`: steps in few passes over memory and tensor by tensor, the gradients' norm, and the
  average of the weights.
- `evaluate`: post-processing alone, and the whole way from images to boxes.
- `predict`: the detector as users run it, by this program, torchvision and runtimes for ONNX.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from common.machine import cpu_flags
from profiling.bench.results import (
    CEILING,
    CEILING_RECIPE,
    RECIPES,
    Benchmark,
    Finding,
    Results,
    speed_ups,
)
from profiling.bench.variant import STANDARD, Variant, Workload

SUBJECT = "torch"
ONEDNN_ALONE = "torch-onednn"  # The subject without convolutions of our own
BASELINE = "torchvision-tuned"
"""The variant that memory and traffic are compared with: it has the same allocator."""
WANTED_WITH_AMX = {"torchvision": 7.0, "torchvision-tuned": 3.2, "ipex": 2.0}
"""Targets: the minimum speed-up of the subject over other variants."""
WANTED = {"torchvision": 4.5, "torchvision-tuned": 1.4, "ipex": 1.7}
SHARE_OF_CEILING, SHARE_OF_CEILING_WITH_AMX = 0.75, 0.60
"""Target share of the best convolution's rate. With AMX, memory bounds more of a step."""
AS_FAST_AS_BEFORE = 0.97
"""Target of `--against`: the least speed-up of the subject over itself in another environment."""
MOST_BESIDE_LOAD = 2.3
"""Target slowdown while one of two cores is busy: all threads wait for the slower core."""


def has_amx() -> bool:
    """Whether the processor has AMX tiles for BF16."""
    return "amx_bf16" in cpu_flags()


def step_findings(results: Results) -> list[Finding]:
    """Compare our step with the other variants, and with the machine's ceiling."""
    names = [name for name in results.names if name != CEILING]
    subject = SUBJECT if SUBJECT in names else (names or [CEILING])[0]
    wanted = (WANTED_WITH_AMX if has_amx() else WANTED) if subject == SUBJECT else {}
    others = [name for name in names if name != subject]
    findings = speed_ups(results, [(subject, other, wanted.get(other)) for other in others])
    if CEILING in results.names:
        # Without duplicates: torch-onednn may itself be the subject.
        compared = [name for name in dict.fromkeys((subject, ONEDNN_ALONE)) if name in names]
        findings += ceiling_findings(results, compared)
    for name in names:
        if name in results.loaded_runs:
            ratio = results.slowdown(name)
            what = f"{name}: step time while another process keeps one core busy"
            most = MOST_BESIDE_LOAD if name == subject else None
            shown = ratio.shown(" times as long")
            findings.append(Finding(what, ratio.median, shown, at_most=most))
    return findings + (share_findings(results, subject) if names else [])


def ceiling_findings(results: Results, compared: list[str]) -> list[Finding]:
    """Return the rates of the ceiling, and the share of the best one that each step reaches."""
    rates = results.details(CEILING)
    product = next(key for key in rates if key.startswith("matrix product"))
    # Medians decide which convolution is the best; its share then uses the rates of each round.
    best = max((name for name in rates if "matrix" not in name), key=lambda name: rates[name])
    findings = [
        Finding(f"best large convolution: {best}", rates[best], f"{rates[best]:,.0f} GFLOP/s"),
        Finding(product, rates[product], f"{rates[product]:,.0f} GFLOP/s"),
    ]
    gflop = results.facts[CEILING]["step_gflop"]
    for name in compared:
        rounds = zip(results.runs[name], results.runs[CEILING], strict=True)
        share = median(gflop / step.seconds / limit.details[best] for step, limit in rounds)
        what = f"{name}: GFLOP/s of the step relative to the best large convolution"
        wanted = SHARE_OF_CEILING_WITH_AMX if has_amx() else SHARE_OF_CEILING
        findings.append(Finding(what, share, f"{share:.2f}", at_least=wanted))
    return findings


def share_findings(results: Results, subject: str) -> list[Finding]:
    """Return how much of the step is convolution and passes over memory, where it was measured.

    Then its page faults, and memory and bytes moved against torchvision's, if that was run.
    """
    findings = []
    if subject in results.primitives:
        what = "share of the step in convolutions and matrix products, oneDNN's and ours"
        share = results.primitives[subject].convolving_share
        findings.append(Finding(f"{subject}: {what}", share, f"{share:.1%}", at_least=0.9))
    if ONEDNN_ALONE in results.primitives:
        what = "share of the step in oneDNN's convolutions and matrix products"
        share = results.primitives[ONEDNN_ALONE].onednn_share
        findings.append(Finding(f"{ONEDNN_ALONE}: {what}", share, f"{share:.1%}", at_least=0.9))
    passes = results.passes_share(subject)
    if passes is not None:
        what = f"{subject}: share of the step in ReLU, additions, masks, casts and reorders"
        findings.append(Finding(what, passes, f"{passes:.1%}", at_most=0.07))
    faults = results.page_faults(subject)
    what = f"{subject}: page faults per step"
    findings.append(Finding(what, faults, f"{faults:,.0f}", at_most=5000))
    if BASELINE not in results.names or subject == BASELINE:
        return findings
    share = results.peak_mb(subject) / results.peak_mb(BASELINE)
    what = f"{subject}: peak memory against {BASELINE}"
    findings.append(Finding(what, share, f"{share:.2f}", at_most=0.4))
    moved, other = results.gigabytes(subject), results.gigabytes(BASELINE)
    if moved and other:
        what = f"{subject}: bytes read and written by operators, against {BASELINE}"
        shown = f"{moved / other:.2f} ({moved:.1f} and {other:.1f} GB)"
        findings.append(Finding(what, moved / other, shown, at_most=0.4))
    return findings


def counterpart_findings(results: Results) -> list[Finding]:
    """Compare each variant with itself in another environment."""
    targets = {SUBJECT: AS_FAST_AS_BEFORE}
    pairs = [(v.counterpart, v.name, targets.get(v.counterpart))
             for v in results.variants if v.counterpart is not None]  # fmt: skip
    return speed_ups(results, pairs)


COMPILED: dict[str, Any] = {
    # One thread compiles in the process itself: no compile workers are left when it ends.
    "environment": {"TORCHINDUCTOR_COMPILE_THREADS": "1"},
    "cache_variable": "TORCHINDUCTOR_CACHE_DIR",
    "options": {"compiled": True},
    "by_default": False,
}


def ours(name: str, about: str, **fields: Any) -> Variant:
    """Return a variant that runs our step, pinned."""
    return Variant(name, about, f"{RECIPES}.step_torch", pinned=True, **fields)


def without(name: str, about: str, *, allocator: str = "tuned", **options: Any) -> Variant:
    """Return the torch engine with another allocator, or an option of its recipe the other way."""
    name, about = f"torch-{name}", f"torch, but {about}"
    return ours(name, about, allocator=allocator, by_default=False, options=options)


def torchvisions(name: str, about: str, **fields: Any) -> Variant:
    """Return a variant that runs torchvision's step."""
    return Variant(name, about, f"{RECIPES}.step_torchvision", **fields)


STEP = Benchmark(
    name="step",
    about="a training step: forward, loss, backward, optimizer",
    rounds=5,
    warm_up=3,
    of_steps=True,
    findings=step_findings,
    variants=(
        torchvisions(
            "torchvision",
            "RetinaNet of torchvision as users run it: BF16 autocast, channels_last, Adam",
            allocator="system",
        ),
        torchvisions("torchvision-tuned", "the same with our memory policy"),
        # IPEX puts a fused step of its own in the place of torch's plain Adam.
        ours(
            "ipex",
            "the paper's path: our model through ipex.optimize",
            needs_ipex=True,
            options={"engine": "ipex", "fused_adam": False},
        ),
        ours("torch", "ours on stock PyTorch, as a training runs it"),
        ours(
            ONEDNN_ALONE,
            "torch, but oneDNN computes all convolutions",
            options={"convolutions": "onednn"},
        ),
        without("system", "the allocator of the C library", allocator="system"),
        without("tcmalloc", "the allocator tcmalloc", allocator="tcmalloc"),
        without("jemalloc", "the allocator jemalloc", allocator="jemalloc"),
        without("unfolded", "torchvision's modules under autocast", folded=False),
        without("reference-loss", "torchvision's focal loss", focal_form="reference"),
        without("paper-loss", "the paper's focal loss", focal_form="paper"),
        without("unfused-adam", "Adam tensor by tensor", fused_adam=False),
        ours(
            "torch-compiled",
            "our model and loss, but torch.compile runs the model (compiles for minutes)",
            **COMPILED,
        ),
        torchvisions(
            "torchvision-compiled",
            "torchvision-tuned through torch.compile (compiles for minutes)",
            **COMPILED,
        ),
        Variant(
            "ipex-submission",
            "IPEX as in Intel's submission: plain weights, tcmalloc, Intel's OpenMP",
            f"{RECIPES}.step_submission",
            allocator="tcmalloc",
            needs_ipex=True,
            pinned=True,
            needs_intel_openmp=True,
            # As in the submission: threads of Intel's OpenMP spin for 1 ms after their work.
            environment={"KMP_BLOCKTIME": "1"},
            by_default=False,
        ),
        Variant(
            CEILING,
            "upper limit: the network's large convolutions, and a matrix product",
            CEILING_RECIPE,
        ),
    ),
)

FORMS = {
    "kernel": "ours: one C++ pass",
    "paper": "the paper's: in place, explicit backward",
    "paper_implicit": "the paper's, backward by autograd",
    "reference": "torchvision's on one-hot targets",
}
BANDWIDTH = "bandwidth"
COPY = "copy"
"""The detail that is the memory's bandwidth here, as in the STREAM benchmark: reading in one place
and writing in another, which is what a loss does with logits and gradients."""


def loss_findings(results: Results) -> list[Finding]:
    """Compare our form with the others on the same logits, and with moving its bytes alone."""
    others = ("reference-system", "paper", "paper-implicit")
    pairs = [("kernel", "reference", 12), *(("kernel", other, None) for other in others)]
    findings = speed_ups(results, [*pairs, ("kernel-float32", "reference-float32", None)])
    if BANDWIDTH not in results.names:
        return findings
    for name, rate in results.details(BANDWIDTH).items():
        findings.append(Finding(f"memory bandwidth: {name}", rate, f"{rate / 1e9:.1f} GB/s"))
    for name, wanted in (("kernel", 0.5), ("kernel-float32", None)):
        if name in results.names:
            moved = results.facts[name]["least_bytes"]
            rounds = zip(results.runs[name], results.runs[BANDWIDTH], strict=True)
            share = median(moved / run.seconds / limit.details[COPY] for run, limit in rounds)
            what = f"{name}: bandwidth relative to a copy"
            findings.append(Finding(what, share, f"{share:.2f}", at_least=wanted))
    return findings


LOSS = Benchmark(
    name="loss",
    about="the focal loss of a batch, forward and backward",
    rounds=9,
    warm_up=5,
    settling=1,
    findings=loss_findings,
    variants=(
        *(
            Variant(
                f"{form.replace('_', '-')}{suffix}",
                f"{about}; {dtype} logits",
                f"{RECIPES}.focal_loss",
                options={"form": form, "dtype": dtype},
                by_default=dtype == "bfloat16",
            )
            for dtype, suffix in (("bfloat16", ""), ("float32", "-float32"))
            for form, about in FORMS.items()
        ),
        Variant(
            "reference-system",
            "reference, but with the allocator of the C library",
            f"{RECIPES}.focal_loss",
            allocator="system",
            options={"form": "reference", "dtype": "bfloat16"},
            by_default=False,
        ),
        Variant(BANDWIDTH, "upper limit: large copies in memory", f"{RECIPES}.bandwidth"),
    ),
)


OPTIMIZERS = {"adam": 2.0, "sgd": None, "lamb": 2.0}
"""Optimizers, each with its target speed-up over the loop over tensors."""


OPTIMIZER = Benchmark(
    name="optimizer",
    about="an optimizer step over the detector's weights, their average, and the gradient norm",
    rounds=15,
    warm_up=5,
    settling=1,
    findings=partial(
        speed_ups,
        pairs=[(name, f"{name}-unfused", wanted) for name, wanted in OPTIMIZERS.items()],
    ),
    variants=[
        *(
            Variant(
                f"{name}{suffix}",
                f"{name}, {form}",
                f"{RECIPES}.optimizer_step",
                options={"name": name, "fused": not suffix},
            )
            for name in OPTIMIZERS
            for suffix, form in (
                ("", "as a training runs it"),
                ("-unfused", "tensor by tensor (foreach=False)"),
            )
        ),
        *(
            Variant(name, about, f"{RECIPES}.gradient_norm", options={"clips": clips})
            for name, about, clips in (
                ("norm", "the norm of all gradients", False),
                ("clipping", "the norm of all gradients, and their clipping", True),
            )
        ),
        Variant("ema", "the average of the weights (training.ema)", f"{RECIPES}.weight_average"),
    ],
)


def evaluation(name: str, about: str, whose: str, **fields: Any) -> Variant:
    """Return a variant of a complete evaluation step of "ours" or "torchvision"."""
    return Variant(name, about, f"{RECIPES}.evaluation", options={"whose": whose}, **fields)


def postprocessing(name: str, about: str, whose: str) -> Variant:
    """Return the post-processing of "ours" or "torchvision"."""
    return Variant(name, about, f"{RECIPES}.postprocessing", options={"whose": whose})


EVALUATE = Benchmark(
    name="evaluate",
    about="an evaluation step of a batch, and its post-processing alone",
    rounds=9,
    warm_up=4,
    settling=1,
    findings=partial(
        speed_ups,
        pairs=(
            ("postprocess", "postprocess-torchvision", 5),
            ("torch", "torchvision", None),
            ("torch", "torchvision-tuned", None),
        ),
    ),
    variants=(
        postprocessing(
            "postprocess", "our post-processing of a trained detector's outputs", "ours"
        ),
        postprocessing(
            "postprocess-torchvision",
            "post-processing of torchvision on the same outputs",
            "torchvision",
        ),
        evaluation(
            "torchvision",
            "whole step of torchvision as users run it: BF16 autocast, channels_last",
            "torchvision",
            allocator="system",
        ),
        evaluation("torchvision-tuned", "the same with our memory policy", "torchvision"),
        evaluation("torch", "our whole step, as in a training", "ours"),
    ),
)


ONNX = ("onnx", "onnxscript", "onnxruntime")
OPENVINO = (*ONNX[:2], "openvino")
RIVALS = ("torchvision", "openvino", "onnxruntime")
WANTED_IN_PREDICTION = {("torchvision-bf16", STANDARD.image_size): 2.0}
"""Targets: the minimum speed-up of ours in BF16 over a contestant, for images of a size."""


def predict_findings(results: Results) -> list[Finding]:
    """Compare ours with the others in each precision, and both precisions of ours; then boxes."""
    size = results.workload.image_size
    pairs = [
        (f"ours-{precision}", f"{rival}-{precision}")
        for precision in ("bf16", "float32")
        for rival in RIVALS
    ]
    others = ("ours-float32", "onnxruntime-float32", "openvino-int8")
    pairs += [("ours-bf16", other) for other in others]
    findings = speed_ups(
        results, [(*pair, WANTED_IN_PREDICTION.get((pair[1], size))) for pair in pairs]
    )
    for name in results.names:
        share = results.facts[name]["agreement"]
        what = f"{name}: boxes as ours finds them in float32"
        findings.append(Finding(what, share, f"{share:.1%}"))
    return findings


def predictions(
    program: str, about: str, *, precisions: Sequence[str] = ("bf16", "float32"), **fields: Any
) -> list[Variant]:
    """Return a program's contestants, one for each precision."""
    return [
        Variant(
            f"{program}-{precision}",
            f"{about}, {precision}",
            f"{RECIPES}.prediction",
            options={"program": program, "precision": precision},
            needs_bf16=precision == "bf16",
            **fields,
        )
        for precision in precisions
    ]


PREDICT = Benchmark(
    name="predict",
    about="prediction, from pictures in memory (uint8, the network's size) to boxes",
    workloads=[
        Workload(images=images, image_size=size) for size in (320, 800) for images in (1, 8)
    ],
    files=f"{RECIPES}.prediction_files",
    rounds=5,
    warm_up=1,
    settling=1,
    findings=predict_findings,
    variants=[
        *predictions("ours", "Detector.predict, as `retinanet predict` computes"),
        *predictions("torchvision", "torchvision's RetinaNet in channels_last (bf16 by autocast)"),
        *predictions(
            "onnxruntime", "ONNX Runtime on our export", precisions=["float32"], packages=ONNX
        ),
        *predictions("openvino", "OpenVINO on our export", packages=OPENVINO),
        *predictions("openvino", "the same", precisions=["int8"], packages=(*OPENVINO, "nncf")),
    ],
)
