"""What is fused into a primitive, as its attributes tell."""

from profiling.onednn_log.problem import Problem

POST_OPS = "attr-post-ops:"
OF_NO_WEIGHT = ("attr-scratchpad:",)
"""Attributes that change nothing of the work."""


def post_ops(problem: Problem) -> tuple[str, ...]:
    """Fused operations in their order: `("sum", "eltwise_relu")`."""
    for word in problem.attributes.split():
        if word.startswith(POST_OPS):
            listed = word.removeprefix(POST_OPS).strip("'\"").replace(";", "+").strip("+")
            return tuple(listed.split("+"))
    return ()


def other_attributes(problem: Problem) -> tuple[str, ...]:
    """Scales, zero points, the arithmetic's precision: all but post-ops, in alphabetical order."""
    kept = (
        word.strip("'\"") for word in problem.attributes.split() if not word.startswith(POST_OPS)
    )
    return tuple(sorted(word for word in kept if not word.startswith(OF_NO_WEIGHT)))
