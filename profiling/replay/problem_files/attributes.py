"""Attributes of a primitive: `attr-scratchpad:user attr-post-ops:sum` as benchdnn's options."""

from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.post_operations import post_operation_option
from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError

SCALE = "0.5"
ZERO_POINT = "1"
DROPOUT = "0.5:12345"
"""A log has no values of scales, zero points and dropout: they are given when a primitive runs."""

COPIED = ("attr-scratchpad", "attr-fpmath", "attr-acc-mode", "attr-rounding-mode")
SET_BY_BENCHDNN = ("rnn_data_qparams",)
DEFAULT_TYPES = {"attr-scales": "f32", "attr-zero-points": "s32"}

WEIGHTS_MASKS = {False: {1: "per_oc"}, True: {3: "per_oc"}}
"""Of convolutions and inner products; with groups, output channels are the first two
dimensions."""

MASKS = {1: "per_dim_0", 2: "per_dim_1", 3: "per_dim_01", 4: "per_dim_2", 8: "per_dim_3"}
"""Of all others but matrix products: bit by bit, dimensions with values of their own."""


def attribute_options(problem: Problem, dialect: Dialect, *, dimensions: int = 0) -> list[str]:
    """benchdnn's options.

    Args:
        problem: Of which the attributes are.
        dialect: benchdnn's.
        dimensions: Of the tensors of a matrix product.

    Raises:
        NotExpressibleError: benchdnn does not know one.
    """
    options = []
    for word in problem.attributes.split():
        name, _, value = word.partition(":")
        option = attribute_option(problem, name, value, dialect, dimensions)
        if option:
            options.append(option)
    return options


def attribute_option(
    problem: Problem, name: str, value: str, dialect: Dialect, dimensions: int
) -> str:
    """One of them; empty where benchdnn sets it without being told."""
    if name in COPIED:
        return f"--{name}={value}"
    if name == "attr-post-ops":
        return post_operation_option(value, dialect)
    if name in ("attr-scales", "attr-zero-points"):
        entries = [quantization(problem, name, one, dimensions) for one in value.split("+")]
        return f"--{name}={'+'.join(entries)}"
    if name in SET_BY_BENCHDNN:
        return ""
    return rare_option(name, value, dialect)


def rare_option(name: str, value: str, dialect: Dialect) -> str:
    """One of those that training has not.

    Raises:
        NotExpressibleError: benchdnn does not know it.
    """
    if name == "attr-deterministic":
        return f"--{name}={'true' if value in ('1', 'true') else 'false'}"
    if name == "attr-dropout":
        return f"--{name}={DROPOUT}" + (f":{value}" if value else "")
    if name in ("attr-oscale", "attr-output-scales"):
        return output_scales(value, dialect)
    raise NotExpressibleError(f"benchdnn knows no attribute {name!r}")


def output_scales(value: str, dialect: Dialect) -> str:
    """Scales of the result, which 3.0 gave up for scales of each tensor."""
    if dialect.major != 2:
        raise NotExpressibleError(
            "output scales are oneDNN 2.x's (write with --dialect 2 for a benchdnn of that version)"
        )
    mask = value.partition(":")[0]
    return f"--attr-oscale=common:{SCALE}" if mask == "0" else f"--attr-oscale=per_oc:{SCALE}"


def quantization(problem: Problem, name: str, entry: str, dimensions: int) -> str:
    """`wei:2:f32:32x1` (tensor, mask, type, groups) as `wei:per_oc:f32:32x1`.

    Raises:
        NotExpressibleError: benchdnn has no name for the mask.
    """
    role, mask, *rest = entry.split(":")
    if not mask.isdigit():
        raise NotExpressibleError(f"{name} {entry!r} has no mask")
    policy = policy_of(problem, role, int(mask), dimensions)
    words = [role, policy]
    if policy == "common":
        words.append(SCALE if name == "attr-scales" else ZERO_POINT)
    is_named = rest[:1] in ([], [DEFAULT_TYPES[name]]) and len(rest) < 2
    return ":".join(words if is_named or not is_type(rest[0]) else [*words, *rest])


def is_type(word: str) -> bool:
    """Whether it is a data type; 2.x has a value in its place."""
    return word[:1].isalpha()


def policy_of(problem: Problem, role: str, mask: int, dimensions: int) -> str:
    """benchdnn's name for the dimensions that have values of their own.

    Raises:
        NotExpressibleError: There is none.
    """
    if mask == 0:
        return "common"
    if problem.kind == "matmul":
        last, before = 1 << (dimensions - 1), 1 << (dimensions - 2)
        names = {(1 << dimensions) - 1: "per_tensor", last: "per_oc", last + before: "per_ocic"}
    elif role == "wei" and problem.kind in ("convolution", "deconvolution", "inner_product"):
        names = WEIGHTS_MASKS[problem.shape.startswith("g")]
    else:
        names = MASKS
    if mask not in names:
        raise NotExpressibleError(f"benchdnn has no name for the mask {mask} of {role}")
    return names[mask]
