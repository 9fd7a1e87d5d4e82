"""Fields of a log's line, taken apart for benchdnn's drivers.

TODO-DOC Layouts of a log as benchdnn's tags and strides.

TODO-DOC Data types of a problem's tensors in benchdnn's words.

TODO-DOC A problem as benchdnn's command line has it.

TODO-DOC Attributes of a primitive: `attr-scratchpad:user attr-post-ops:sum` as benchdnn's options.

TODO-DOC Operations that a primitive does on its result, and algorithms of eltwise: benchdnn's words.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from profiling.onednn_log.work import MemoryDescriptor, Problem

DIMENSIONS = re.compile(r"\d+(?:x\d+)*")
UNKNOWN_SIZE = re.compile(r"\*|-\d{10}")
"""A size that is given at run time; old versions write their mark for it as a number."""

DIRECTIONS = {
    "forward": "FWD_D",
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
    "backward": "BWD_DW",
}
"""oneDNN's propagation kinds without a bias."""


def direction_of(problem: Problem) -> str:
    """benchdnn's word, without a bias.

    Raises:
        NotExpressibleError: There is none.
    """
    if problem.direction not in DIRECTIONS:
        raise NotExpressibleError(f"benchdnn has no direction {problem.direction!r}")
    return DIRECTIONS[problem.direction]


def auxiliary_of(problem: Problem) -> dict[str, str]:
    """`alg:eltwise_relu alpha:0` as a dictionary."""
    pairs = (word.partition(":") for word in problem.auxiliary.split())
    return {name: value for name, _, value in pairs}


def algorithm_of(problem: Problem, *, prefix: str) -> str:
    """The algorithm without the name of its kind: `relu` of `eltwise_relu`.

    Raises:
        NotExpressibleError: The log has none.
    """
    if not problem.algorithm:
        raise NotExpressibleError("the log does not tell its algorithm")
    return problem.algorithm.removeprefix(prefix)


def tensor(problem: Problem, *roles: str) -> MemoryDescriptor:
    """The first of these tensors that is there.

    Raises:
        NotExpressibleError: None is.
    """
    for role in roles:
        found = problem.memory(role)
        if found is not None:
            return found
    raise NotExpressibleError(f"the log does not tell of {' or '.join(roles)}")


def sources_of(problem: Problem) -> list[MemoryDescriptor]:
    """All inputs of a primitive that has several, in the log's order."""
    return [one for one in problem.memories if re.fullmatch(r"src_?\d*", one.role)]


def require_sizes(problem: Problem) -> str:
    """The sizes as the log has them.

    Raises:
        NotExpressibleError: They are not all in the log.
    """
    if not problem.shape:
        raise NotExpressibleError("the log does not tell its sizes")
    if UNKNOWN_SIZE.search(problem.shape):
        raise NotExpressibleError(f"its sizes are known at run time only ({problem.shape})")
    return problem.shape


def tensor_sizes(problem: Problem, *, at_least: int, at_most: int | None = None) -> list[str]:
    """`2x64:64x10` apart, without what follows `at_most`.

    Raises:
        NotExpressibleError: They are fewer, or not sizes.
    """
    sizes = re.split(r"[: ]", require_sizes(problem))
    if len(sizes) < at_least or not all(map(DIMENSIONS.fullmatch, sizes)):
        raise NotExpressibleError(f"its sizes {problem.shape!r} are not those of tensors")
    return sizes[:at_most]


ANY = "any"

Layouts = Literal["log", "any"]
"""`log`: what the log says, and the library's choice where it was so in the log; `any`: the
library's choice wherever benchdnn lets it choose."""


class Dialect(NamedTuple):
    """Which words are used, and for which layouts."""

    major: int = 3
    """benchdnn's own: 2, as documented for 2.x, or 3."""
    layouts: Layouts = "log"


def free_tag(memory: MemoryDescriptor, dialect: Dialect) -> str:
    """The tag where benchdnn's driver also takes `any`.

    A program that leaves a layout to the library gets the best one of its version and its
    machine: `any` runs the same choice again, and the tag of another machine would not.

    Raises:
        NotExpressibleError: It has strides, or is none that a tag names.
    """
    return ANY if leaves_choice(memory, dialect) else fixed_tag(memory)


def fixed_tag(memory: MemoryDescriptor) -> str:
    """The tag where benchdnn's driver takes no `any`.

    Raises:
        NotExpressibleError: It has strides, or is none that a tag names.
    """
    if memory.strides:
        raise NotExpressibleError(
            f"{memory.role} is not dense (strides {memory.strides}), and this driver of benchdnn "
            "takes no strides"
        )
    return tag_name(memory)


def tag_name(memory: MemoryDescriptor) -> str:
    """The layout's name.

    Raises:
        NotExpressibleError: It has none.
    """
    if memory.kind != "blocked" or not memory.tag:
        raise NotExpressibleError(f"{memory.role} has a layout without a name ({memory.kind})")
    if not memory.tag.isalnum():
        raise NotExpressibleError(f"{memory.role}'s layout is known at run time only")
    if "o" in memory.properties or "0" in memory.properties:
        raise NotExpressibleError(f"{memory.role} is a part of a larger tensor")
    return memory.tag


def layout_options(
    memories: Sequence[MemoryDescriptor | None],
    names: Sequence[str],
    dialect: Dialect,
    *,
    takes_any: bool = True,
    takes_strides: bool = True,
) -> list[str]:
    """`--stag --wtag --dtag`, and `--strides` where a tensor is not dense.

    Args:
        memories: In the order of the driver's strides; None where a log has no such tensor.
        names: Of the tags' options, in the same order.
        dialect: benchdnn's.
        takes_any: Whether the driver takes `any`.
        takes_strides: Whether it takes strides; a tensor has either these or a tag.

    Raises:
        NotExpressibleError: A layout cannot be given.
    """
    options, strides = [], []
    for memory, name in zip(memories, names, strict=True):
        is_free = takes_any and memory is not None and leaves_choice(memory, dialect)
        if memory is None or not memory.strides or is_free or not takes_strides:
            strides.append("")
            if memory is not None:
                tag = free_tag(memory, dialect) if takes_any else fixed_tag(memory)
                options.append(f"--{name}={tag}")
            continue
        if not tag_name(memory).islower() or not memory.tag.isalpha():
            raise NotExpressibleError(
                f"{memory.role} has blocks and is not dense ({memory.layout}); benchdnn takes one "
                "or the other"
            )
        strides.append(memory.strides)
    if any(strides):
        options.append(f"--strides={':'.join(strides)}")
    return options


def leaves_choice(memory: MemoryDescriptor, dialect: Dialect) -> bool:
    """Whether the layout is the library's to choose."""
    return dialect.layouts == "any" or "a" in memory.properties or memory.kind == "any"


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


class NotExpressibleError(ValueError):
    """benchdnn has no words for a problem. The message says why, in one line."""


@dataclass(frozen=True, slots=True)
class ProblemLine:
    """One problem: a driver's name, its options, its sizes."""

    driver: str
    """`conv`, `matmul` …"""
    options: tuple[str, ...]
    """`--dir=FWD_D`, `--dt=bf16:bf16:bf16` …"""
    sizes: str
    """`mb2_ic64oc64_ih200…`, `400x256:256x64` …"""
    notes: tuple[str, ...] = ()
    """How what benchdnn runs differs from what the log tells, each in a few words."""

    @property
    def words(self) -> tuple[str, ...]:
        """What follows `--DRIVER`; options of a line before do not count on it.

        Logs name layouts that are not among the documented ones, and benchdnn takes those
        only if told so.
        """
        return ("--reset", "--allow-enum-tags-only=false", *self.options, self.sizes)

    @property
    def text(self) -> str:
        """A line of a problem file."""
        return " ".join(self.words)


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
