"""oneDNN's verbose lines: seconds by kind of primitive. Loads no torch."""

from collections import defaultdict
from collections.abc import Iterable

COMPUTING = ("convolution", "deconvolution", "matmul", "inner_product")
"""The primitives that multiply matrices; the others move or touch up data."""


def seconds_by_primitive(lines: Iterable[str]) -> dict[str, float]:
    """Seconds in each kind of primitive, such as `convolution backward_data` or `reorder`.

    `lines` are of oneDNN 3's `onednn_verbose,v1,primitive,exec,cpu,convolution,…,0.208984`, whose
    last field is milliseconds; all other lines are passed over.
    """
    totals: dict[str, float] = defaultdict(float)
    for line in lines:
        fields = line.strip().split(",")
        if fields[0] != "onednn_verbose" or "exec" not in fields[:4]:
            continue
        start = fields.index("exec")
        primitive, direction = fields[start + 2], fields[start + 4]
        name = primitive if direction == "undef" else f"{primitive} {direction}"
        totals[name] += float(fields[-1]) / 1000
    return dict(totals)


def is_computing(name: str) -> bool:
    """Whether a key of `seconds_by_primitive` is a convolution or a matrix product."""
    return name.split(maxsplit=1)[0] in COMPUTING
