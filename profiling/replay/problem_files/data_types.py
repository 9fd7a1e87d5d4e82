"""Data types of a problem's tensors in benchdnn's words."""

from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError

TRIPLES_OF_2 = frozenset(
    [
        "f32f32s8",
        "u8s8f32",
        "u8s8s32",
        "u8s8s8",
        "u8s8u8",
        "s8s8f32",
        "s8s8s32",
        "s8s8s8",
        "s8s8u8",
        "f16f16s8",
        "bf16bf16bf16",
        "bf16bf16f32",
        "bf16f32bf16",
        "f32bf16bf16",
    ]
)
"""Configurations that benchdnn 2.x knows beside `f32` and `f16`: source, weights, destination."""


def triple_option(source: str, weights: str, destination: str, dialect: Dialect) -> str:
    """`--dt=bf16:bf16:bf16`, or `--cfg=bf16bf16bf16` for 2.x.

    Raises:
        NotExpressibleError: 2.x has no such configuration.
    """
    types = (source, weights, destination)
    if dialect.major != 2:
        return f"--dt={':'.join(types)}"
    if len(set(types)) == 1 and source in ("f32", "f16"):
        return f"--cfg={source}"
    name = "".join(types)
    if name not in TRIPLES_OF_2:
        raise NotExpressibleError(f"benchdnn 2.x has no configuration {name}")
    return f"--cfg={name}"


def pair_option(source: str, destination: str, dialect: Dialect, *, old_name: str = "dt") -> str:
    """`--dt=bf16:f32`; 2.x takes one type for both.

    Args:
        source: A type.
        destination: Another.
        dialect: benchdnn's.
        old_name: The option of 2.x.

    Raises:
        NotExpressibleError: The two differ, and 2.x wants one.
    """
    if dialect.major != 2:
        return f"--dt={source}:{destination}"
    if source != destination:
        raise NotExpressibleError(f"benchdnn 2.x takes one type, not {source} and {destination}")
    return f"--{old_name}={source}"
