"""Operations that a primitive does on its result, and algorithms of eltwise: benchdnn's words."""

from collections.abc import Sequence

from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError

MASK_POLICIES = {0: "common", 1: "per_dim_0", 2: "per_oc", 3: "per_dim_01"}
"""Which dimensions have values of their own, bit by bit; all others are `per_tensor` here."""

HARDSWISH = ("0.166667", "0.5")
"""What 2.x computed without being told, x · (x / 6 + 1 / 2)."""


def post_operation_option(text: str, dialect: Dialect) -> str:
    """`--attr-post-ops` of what a log has after `attr-post-ops:`.

    Args:
        text: `sum:0.5+eltwise_relu`; up to 2.1 with `;`, and in quotes.
        dialect: benchdnn's.

    Raises:
        NotExpressibleError: benchdnn does not know one of them.
    """
    entries = text.strip("'\";").replace(";", "+").split("+")
    words = "+".join(post_operation(*entry.split(":"), dialect=dialect) for entry in entries)
    return f"--attr-post-ops={words}"


def post_operation(name: str, *values: str, dialect: Dialect) -> str:
    """One of them.

    Raises:
        NotExpressibleError: benchdnn does not know it.
    """
    if name.startswith("eltwise_"):
        algorithm, alpha, beta = eltwise(name, [*values, "0", "0"][:2], dialect)
        scale = values[2:3] if dialect.major == 2 else ()
        return ":".join([algorithm, alpha, beta, *scale])
    if name.startswith("binary_"):
        return binary(name, values, dialect)
    if name == "prelu":
        mask = int(values[0]) if values else 0
        return f"prelu:{MASK_POLICIES.get(mask, 'per_tensor')}"
    if name in ("sum", "dw") or name.startswith("dw_"):
        return ":".join([name, *values])
    raise NotExpressibleError(f"benchdnn knows no post-operation {name!r}")


def binary(name: str, values: Sequence[str], dialect: Dialect) -> str:
    """`binary_add:f32:15:acdb` in benchdnn's words; the second tensor's type, mask and layout.

    2.x takes no masks but names of them.
    """
    algorithm = name.removeprefix("binary_")
    if algorithm == "select":
        raise NotExpressibleError("benchdnn 3 before 3.9 has no select as a post-operation")
    kind, *rest = values
    if rest and dialect.major == 2:
        rest[0] = MASK_POLICIES.get(int(rest[0]), "per_tensor")
    return ":".join([algorithm, kind, *rest])


def eltwise(name: str, values: Sequence[str], dialect: Dialect) -> tuple[str, str, str]:
    """An algorithm of eltwise with alpha and beta.

    benchdnn calls `eltwise_relu_use_dst_for_bwd` `relu_dst`. Between 2.x and 3.0 algorithms were
    renamed, and got parameters that had been constants.

    Args:
        name: As in the log, `eltwise_relu`.
        values: alpha and beta.
        dialect: benchdnn's.
    """
    alpha, beta = values
    algorithm = name.removeprefix("eltwise_").replace("_use_dst_for_bwd", "_dst")
    if algorithm == "gelu":
        algorithm = "gelu_tanh"
    if dialect.major == 2:
        return algorithm, alpha, beta
    if algorithm == "bounded_relu":
        return "clip", "0", alpha
    if algorithm == "logsigmoid":
        return "soft_relu", "-1", "0"
    if algorithm == "soft_relu" and float(alpha) == 0:
        return "soft_relu", "1", "0"
    if algorithm == "hardswish" and float(alpha) == float(beta) == 0:
        return "hardswish", *HARDSWISH
    return algorithm, alpha, beta
