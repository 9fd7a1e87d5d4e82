"""What the bytes that a step's operators move say, at the bandwidth that was measured."""

from profiling.report.advice import Advice
from profiling.report.words import three
from profiling.trace.bytes_moved import BytesMoved, MovedRow
from profiling.trace.categories import Category, category_of

WORTHWHILE = 0.05
"""Share of a step from which on it is a finding."""

CONVOLUTIONS = ("aten::convolution", "torch_ipex::convolution")


def memory_traffic(
    moved: BytesMoved | None, *, bandwidth_gb_per_s: float | None, step_ms: float
) -> list[Advice]:
    """Return how long a step's bytes take at the memory's bandwidth, as a share of the step.

    What could be saved is the traffic of operators that neither multiply matrices nor are our own
    kernels: fused with what makes their arguments, they need not read them.
    """
    if moved is None or not bandwidth_gb_per_s or not step_ms:
        return []
    milliseconds = moved.total / bandwidth_gb_per_s / 1e6
    fusible = [row for row in moved.rows if is_fusible(row)]
    saves = sum(row.total for row in fusible) / bandwidth_gb_per_s / 1e6
    if saves <= WORTHWHILE * step_ms:
        return []
    first = ", ".join(
        f"{row.operator} ({row.phase}) {three(row.total / 1e9)} GB" for row in fusible[:3]
    )
    advice = Advice(
        title="Memory traffic of small operators",
        evidence=f"A step's operators read and write {three(moved.total / 1e9)} GB. At the "
        f"measured {three(bandwidth_gb_per_s)} GB/s that takes {three(milliseconds)} ms, "
        f"{milliseconds / step_ms:.0%} of the step, as far as it is not in caches; "
        f"{three(saves)} ms of them outside convolutions, matrix products and our kernels: "
        f"{first}.",
        todo="Fuse them with the operators that make their arguments, let them work in place, or "
        "keep values in BF16.",
        section="trace",
        saves_ms=saves,
    )
    return [advice]


def is_fusible(row: MovedRow) -> bool:
    """Return whether an operator does little with each byte."""
    own = "::" not in row.operator  # as `retinanet.bytes_moved` has them
    return (
        not own
        and not row.operator.startswith(CONVOLUTIONS)
        and category_of(row.operator) == Category.OTHER
    )
