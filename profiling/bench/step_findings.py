"""What the benchmark of a training step is made for."""

from statistics import median

from profiling.bench.finding import Finding, speed_up
from profiling.bench.results import Results
from retinanet.processor import cpu_flags

CEILING = "ceiling"
"""The contestant that runs single convolutions and a matrix product."""

SUBJECT = "torch"

BASELINE = "torchvision-tuned"
"""The contestant that memory and traffic are held against."""

ONEDNN_ALONE = "torch-onednn"
"""The subject without convolutions of our own."""

WANTED = {"torchvision": 4.5, "torchvision-tuned": 1.4, "ipex": 1.7}
WANTED_WITH_AMX = {"torchvision": 7.0, "torchvision-tuned": 3.2, "ipex": 2.0}
"""Times as fast that the subject is to be, at least."""

SHARE_OF_CEILING, SHARE_OF_CEILING_WITH_AMX = 0.75, 0.60
"""Of the best convolution's rate. Tiles are so fast that memory bounds more of a step."""

MOST_BESIDE_LOAD = 2.3
"""Times as long, with one of two cores kept busy: the team of threads waits for the slower core."""


def step_findings(results: Results) -> list[Finding]:
    """Our step against the others', and against what the machine can do."""
    contestants = [name for name in results.names if name != CEILING]
    if not contestants:
        return ceiling_findings(results)
    subject = SUBJECT if SUBJECT in contestants else contestants[0]
    findings = []
    for other in contestants:
        if other != subject:
            wanted = wanted_of(other) if subject == SUBJECT else None
            findings += speed_up(results, subject, other, at_least=wanted)
    findings += ceiling_findings(results)
    if CEILING in results.names:
        findings.append(share_of_ceiling(results, subject))
        if ONEDNN_ALONE in contestants and subject != ONEDNN_ALONE:
            findings.append(share_of_ceiling(results, ONEDNN_ALONE))
    return [
        *findings,
        *load_findings(results, subject),
        *primitive_findings(results, subject),
        *pass_findings(results, subject),
        page_fault_finding(results, subject),
        *memory_findings(results, subject),
        *byte_findings(results, subject),
    ]


def has_amx() -> bool:
    """Whether the processor has tiles for BF16, which change what is possible."""
    return "amx_bf16" in cpu_flags()


def wanted_of(other: str) -> float | None:
    """How many times as fast as another contestant the subject is to be on this processor."""
    return (WANTED_WITH_AMX if has_amx() else WANTED).get(other)


def load_findings(results: Results, subject: str) -> list[Finding]:
    """Return how much longer each contestant's step takes while a process keeps a core busy."""
    findings = []
    for name in results.loaded_runs:
        if name == CEILING:
            continue
        ratio = results.slowdown(name)
        findings.append(
            Finding(
                what=f"{name}: a step while another process keeps one core busy",
                value=ratio.median,
                shown=f"{ratio.median:.2f} times as long ({ratio.lowest:.2f}–{ratio.highest:.2f})",
                at_most=MOST_BESIDE_LOAD if name == subject else None,
            )
        )
    return findings


def primitive_findings(results: Results, subject: str) -> list[Finding]:
    """How much of the step is convolution, as far as that was measured."""
    findings = []
    if subject in results.primitives:
        share = results.primitives[subject].convolving_share
        what = (
            f"{subject}: share of the step in convolutions and matrix products, oneDNN's and ours"
        )
        findings.append(Finding(what=what, value=share, shown=f"{share:.1%}", at_least=0.9))
    if ONEDNN_ALONE in results.primitives:
        share = results.primitives[ONEDNN_ALONE].onednn_share
        what = f"{ONEDNN_ALONE}: share of the step in oneDNN's convolutions and matrix products"
        findings.append(Finding(what=what, value=share, shown=f"{share:.1%}", at_least=0.9))
    return findings


def pass_findings(results: Results, subject: str) -> list[Finding]:
    """How much of the step is in operators that only pass over memory, where that was timed."""
    share = results.passes_share(subject)
    if share is None:
        return []
    what = f"{subject}: share of the step in ReLU, sums, masks, casts and reorders"
    return [Finding(what=what, value=share, shown=f"{share:.1%}", at_most=0.07)]


def page_fault_finding(results: Results, subject: str) -> Finding:
    """Pages that a step takes from the kernel."""
    faults = results.page_faults(subject)
    return Finding(
        what=f"{subject}: page faults a step", value=faults, shown=f"{faults:,.0f}", at_most=5000
    )


def ceiling_findings(results: Results) -> list[Finding]:
    """The rates that the step's rate is held against."""
    if CEILING not in results.names:
        return []
    name, rate = best_convolution(results)
    rates = results.details(CEILING)
    product = next(key for key in rates if key.startswith("matrix product"))
    return [
        Finding(what=f"best large convolution: {name}", value=rate, shown=f"{rate:,.0f} GFLOP/s"),
        Finding(what=product, value=rates[product], shown=f"{rates[product]:,.0f} GFLOP/s"),
    ]


def best_convolution(results: Results) -> tuple[str, float]:
    """The name and the GFLOP/s of the fastest of the ceiling's convolutions."""
    rates = results.details(CEILING)
    convolutions = {name: rate for name, rate in rates.items() if "matrix" not in name}
    best = max(convolutions, key=lambda name: convolutions[name])
    return best, convolutions[best]


def step_gflops(results: Results, name: str) -> float | None:
    """GFLOP/s of a contestant's whole step; None where the arithmetic was not counted."""
    if CEILING not in results.names or name == CEILING:
        return None
    return results.facts[CEILING]["step_gflop"] / results.seconds(name)


def share_of_ceiling(results: Results, subject: str) -> Finding:
    """Round by round, as all that is compared."""
    best, _ = best_convolution(results)
    gflop = results.facts[CEILING]["step_gflop"]
    rounds = zip(results.runs[subject], results.runs[CEILING], strict=True)
    share = median(gflop / step.seconds / limit.details[best] for step, limit in rounds)
    return Finding(
        what=f"{subject}: GFLOP/s of the step over those of the best large convolution",
        value=share,
        shown=f"{share:.2f}",
        at_least=SHARE_OF_CEILING_WITH_AMX if has_amx() else SHARE_OF_CEILING,
    )


def byte_findings(results: Results, subject: str) -> list[Finding]:
    """Bytes that operators move against those of torchvision's, if that was run."""
    moved, other = results.gigabytes(subject), results.gigabytes(BASELINE)
    if not moved or not other or subject == BASELINE:
        return []
    return [
        Finding(
            what=f"{subject}: bytes that operators read and write against {BASELINE}",
            value=moved / other,
            shown=f"{moved / other:.2f} ({moved:.1f} of {other:.1f} GB)",
            at_most=0.4,
        )
    ]


def memory_findings(results: Results, subject: str) -> list[Finding]:
    """Peak memory against torchvision's under the same allocator, if that was run."""
    other = BASELINE
    if other not in results.names or subject == other:
        return []
    share = results.peak_mb(subject) / results.peak_mb(other)
    return [
        Finding(
            what=f"{subject}: peak memory against {other}",
            value=share,
            shown=f"{share:.2f}",
            at_most=0.4,
        )
    ]
