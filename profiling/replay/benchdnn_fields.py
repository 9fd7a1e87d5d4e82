"""The fields of a problem as benchdnn's options: sizes, layouts, data types and attributes.

Every function raises NotExpressibleError where benchdnn has no option for what the log holds.
benchdnn 2.x and 3.x differ in names of options and algorithms and in what they accept (`Dialect`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from profiling.onednn_log.work import DIRECTIONS, MemoryDescriptor, Problem, modern_shape

ANY = "any"

Layouts = Literal["log", "any"]
"""`log`: as in the log, and the library's choice where it was so in the log; `any`: the library's
choice wherever benchdnn accepts `any`."""


class Dialect(NamedTuple):
    """The version of benchdnn's options, and the layouts to request."""

    major: int = 3  # benchdnn's major version: 2, as documented for 2.x, or 3
    layouts: Layouts = "log"


class NotExpressibleError(ValueError):
    """benchdnn cannot run a problem. The message is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class ProblemLine:
    """One problem for benchdnn: a driver, its options, the sizes."""

    driver: str  # `conv`, `matmul` …
    options: tuple[str, ...]  # `--dir=FWD_D`, `--dt=bf16:bf16:bf16` …
    sizes: str  # `mb2_ic64oc64_ih200…`, `400x256:256x64` …
    notes: tuple[str, ...] = ()  # How what benchdnn runs differs from the log, each in a few words

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments after `--DRIVER`, independent of the lines before.

        Logs contain layouts that benchdnn's documentation does not list; benchdnn accepts those
        only with `--allow-enum-tags-only=false`.
        """
        return ("--reset", "--allow-enum-tags-only=false", *self.options, self.sizes)

    @property
    def text(self) -> str:
        """A line of a problem file."""
        return " ".join(self.arguments)


def parse_direction(problem: Problem) -> str:
    """Return benchdnn's name of the direction, without a bias."""
    if problem.direction not in DIRECTIONS:
        raise NotExpressibleError(f"benchdnn has no direction {problem.direction!r}")
    return DIRECTIONS[problem.direction]


def require_algorithm(problem: Problem) -> str:
    """Return the algorithm, which begins with the name of its kind: `eltwise_relu`."""
    if not problem.algorithm:
        raise NotExpressibleError("the log does not contain its algorithm")
    return problem.algorithm


def tensor(problem: Problem, *roles: str) -> MemoryDescriptor:
    """Return the first of these tensors that the problem has."""
    memory = next(filter(None, map(problem.memory, roles)), None)
    if memory is None:
        raise NotExpressibleError(f"the log has no {' or '.join(roles)}")
    return memory


def list_sources(problem: Problem) -> list[MemoryDescriptor]:
    """Return all inputs of a primitive with several, in the log's order."""
    return [memory for memory in problem.memories if re.fullmatch(r"src_?\d*", memory.role)]


DIMENSIONS = re.compile(r"\d+(?:x\d+)*")
UNKNOWN_SIZE = re.compile(r"\*|-\d{10}")
"""A size that is given at run time; old versions write their placeholder as a number."""


def require_sizes(problem: Problem) -> str:
    """Return the sizes as in the log, which must hold all of them."""
    if not problem.shape:
        raise NotExpressibleError("the log does not contain its sizes")
    if UNKNOWN_SIZE.search(problem.shape):
        raise NotExpressibleError(f"its sizes are known at run time only ({problem.shape})")
    return modern_shape(problem)


def tensor_sizes(problem: Problem, count: int) -> list[str]:
    """Return the sizes of the first `count` tensors: `2x64` and `64x10` of `2x64:64x10`."""
    sizes = re.split(r"[: ]", require_sizes(problem))
    if len(sizes) < count or not all(map(DIMENSIONS.fullmatch, sizes)):
        raise NotExpressibleError(f"its sizes {problem.shape!r} are not those of tensors")
    return sizes[:count]


def product_rank(problem: Problem) -> int:
    """Return the number of dimensions of a matrix product's tensors."""
    return tensor_sizes(problem, 2)[0].count("x") + 1


def leaves_choice(memory: MemoryDescriptor, dialect: Dialect) -> bool:
    """Return whether the library chooses the layout."""
    return dialect.layouts == "any" or "a" in memory.properties or memory.kind == "any"


def free_tag(memory: MemoryDescriptor, dialect: Dialect) -> str:
    """Return the layout's tag for an option that also accepts `any`.

    A program that leaves a layout to the library gets the best one of its version and machine:
    `any` repeats that choice, and the tag of another machine would not.
    """
    return ANY if leaves_choice(memory, dialect) else fixed_tag(memory)


def fixed_tag(memory: MemoryDescriptor) -> str:
    """Return the layout's tag for an option that does not accept `any`, nor strides."""
    if memory.strides:
        raise NotExpressibleError(
            f"{memory.role} is not dense (strides {memory.strides}), and this driver of benchdnn "
            "takes no strides"
        )
    return tag_name(memory)


def tag_name(memory: MemoryDescriptor) -> str:
    """Return the layout's name."""
    if memory.kind != "blocked" or not memory.tag:
        raise NotExpressibleError(f"{memory.role} has a layout without a name ({memory.kind})")
    if not memory.tag.isalnum():
        raise NotExpressibleError(f"{memory.role}'s layout is known at run time only")
    if "o" in memory.properties or "0" in memory.properties:
        raise NotExpressibleError(f"{memory.role} is a part of a larger tensor")
    return memory.tag


TAKE_STRIDES = {2: ("matmul",), 3: ("matmul", "batch_normalization", "convolution", "reorder")}
"""Kinds whose driver has `--strides`, by benchdnn's major version."""


def layout_options(
    problem: Problem,
    memories: Sequence[MemoryDescriptor | None],
    names: Sequence[str],
    dialect: Dialect,
    *,
    takes_any: bool = True,
) -> list[str]:
    """Return `--stag --wtag --dtag`, and `--strides` where a tensor is not dense.

    `memories` and the `names` of their options are in the order of the driver's strides; None
    stands where a log has no such tensor. A tensor has either strides or a tag.
    """
    options, strides = [], []
    takes_strides = problem.kind in TAKE_STRIDES[dialect.major]
    for memory, name in zip(memories, names, strict=True):
        is_free = takes_any and memory is not None and leaves_choice(memory, dialect)
        if memory is None or not memory.strides or is_free or not takes_strides:
            strides.append("")
            if memory is not None:
                options.append(f"--{name}={ANY if is_free else fixed_tag(memory)}")
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


CONFIGURATIONS_OF_2 = (
    "f32", "f16", "f32f32s8", "u8s8f32", "u8s8s32", "u8s8s8", "u8s8u8", "s8s8f32", "s8s8s32",
    "s8s8s8", "s8s8u8", "f16f16s8", "bf16bf16bf16", "bf16bf16f32", "bf16f32bf16", "f32bf16bf16",
)  # fmt: skip
"""Configurations of benchdnn 2.x: source, weights, destination, or one type for all."""


def triple_option(memories: Sequence[MemoryDescriptor], dialect: Dialect) -> str:
    """Return `--dt=bf16:bf16:bf16`, or `--cfg=bf16bf16bf16` for 2.x."""
    types = [memory.type for memory in memories]
    if dialect.major != 2:
        return f"--dt={':'.join(types)}"
    name = types[0] if set(types) in ({"f32"}, {"f16"}) else "".join(types)
    if name not in CONFIGURATIONS_OF_2:
        raise NotExpressibleError(f"benchdnn 2.x has no configuration {name}")
    return f"--cfg={name}"


def pair_option(source: str, destination: str, dialect: Dialect, *, old_name: str = "dt") -> str:
    """Return `--dt=bf16:f32`, or `--old_name=bf16` for 2.x, which accepts one type for both."""
    if dialect.major != 2:
        return f"--dt={source}:{destination}"
    if source != destination:
        raise NotExpressibleError(f"benchdnn 2.x takes one type, not {source} and {destination}")
    return f"--{old_name}={source}"


SCALE = "0.5"
ZERO_POINT = "1"
DROPOUT = "0.5:12345"
"""Values of scales, zero points and dropout are given at run time, so that no log has them."""

COPIED = ("attr-scratchpad", "attr-fpmath", "attr-acc-mode", "attr-rounding-mode")
SET_BY_BENCHDNN = ("rnn_data_qparams",)
DEFAULT_TYPES = {"attr-scales": "f32", "attr-zero-points": "s32"}
"""Attributes with a value for each tensor, and the type that is not written."""


def attribute_options(problem: Problem, dialect: Dialect) -> list[str]:
    """Return the attributes `attr-scratchpad:user attr-post-ops:sum` as benchdnn's options."""
    options = []
    for word in problem.attributes.split():
        name, _, value = word.partition(":")
        if name in COPIED:
            options.append(f"--{name}={value}")
        elif name == "attr-post-ops":
            names = (entry.split(":") for entry in value.split("+"))
            operations = (post_operation(*words, dialect=dialect) for words in names)
            options.append(f"--{name}={'+'.join(operations)}")
        elif name in DEFAULT_TYPES:
            # Before 2.3 entries are joined by `_`.
            parts = re.split(r"\+|_(?=src|wei|dst)", value)
            entries = [quantization(problem, name, entry) for entry in parts]
            options.append(f"--{name}={'+'.join(entries)}")
        elif name == "attr-deterministic":
            options.append(f"--{name}={'true' if value in ('1', 'true') else 'false'}")
        elif name == "attr-dropout":
            options.append(f"--{name}={DROPOUT}" + (f":{value}" if value else ""))
        elif name in ("attr-oscale", "attr-output-scales"):
            if dialect.major != 2:
                # oneDNN 3.0 replaced them by scales of each tensor.
                raise NotExpressibleError(
                    "output scales are oneDNN 2.x's (write with --dialect 2 for a benchdnn of that "
                    "version)"
                )
            policy = "common" if value.partition(":")[0] == "0" else "per_oc"
            options.append(f"--attr-oscale={policy}:{SCALE}")
        elif name == "scales":
            raise NotExpressibleError("before 2.3 a log does not name the tensor of its scales")
        elif name not in SET_BY_BENCHDNN:
            raise NotExpressibleError(f"benchdnn has no attribute {name!r}")
    return options


PER_CHANNEL = {False: {1: "per_oc"}, True: {3: "per_oc"}}
"""Masks of the weights of convolutions and inner products, without and with groups: with them,
output channels are the first two dimensions."""

PER_DIMENSION = {1: "per_dim_0", 2: "per_dim_1", 3: "per_dim_01", 4: "per_dim_2", 8: "per_dim_3"}
"""Masks of all others but matrix products: a bit for each dimension with values of its own."""


def quantization(problem: Problem, name: str, entry: str) -> str:
    """Return `wei:2:f32:32x1` (tensor, mask, type, groups) as `wei:per_oc:f32:32x1`."""
    role, mask, *details = entry.split(":")
    if not mask.isdigit():
        raise NotExpressibleError(f"{name} {entry!r} has no mask")
    if int(mask) == 0:
        fields = [role, "common", SCALE if name == "attr-scales" else ZERO_POINT]
    else:
        if problem.kind == "matmul":
            rank = product_rank(problem)
            # A bit for each dimension: the last are the product's columns, then the
            # dimension of its sums.
            last, before = 1 << (rank - 1), 1 << (rank - 2)
            names = {(1 << rank) - 1: "per_tensor", last: "per_oc", last + before: "per_ocic"}
        elif role == "wei" and problem.kind in ("convolution", "deconvolution", "inner_product"):
            names = PER_CHANNEL[problem.shape.startswith("g")]
        else:
            names = PER_DIMENSION
        if int(mask) not in names:
            raise NotExpressibleError(f"benchdnn has no name for the mask {int(mask)} of {role}")
        fields = [role, names[int(mask)]]
    # 2.x has a value in the type's place; the default type is not written unless groups follow.
    has_type = bool(details) and details[0][:1].isalpha()
    if has_type and details != [DEFAULT_TYPES[name]]:
        fields += details
    return ":".join(fields)


MASK_POLICIES = {0: "common", 1: "per_dim_0", 2: "per_oc", 3: "per_dim_01"}
"""Masks of post-operations; all others are `per_tensor`."""


def mask_policy(mask: str) -> str:
    """Return benchdnn's name of a mask; raise NotExpressibleError if it is no number."""
    if not mask.isdecimal():
        raise NotExpressibleError(f"the mask of a post-operation is no number: {mask}")
    return MASK_POLICIES.get(int(mask), "per_tensor")


def post_operation(name: str, *values: str, dialect: Dialect) -> str:
    """Return one post-operation: `binary_add:f32:15:acdb` (type, mask, layout) and the like."""
    if name.startswith("eltwise_"):
        algorithm, alpha, beta = eltwise(name, [*values, "0", "0"][:2], dialect)
        # In 2.x, the operation also has a scale.
        scale = values[2:3] if dialect.major == 2 else ()
        return ":".join([algorithm, alpha, beta, *scale])
    if name == "binary_select":
        raise NotExpressibleError("benchdnn 3 before 3.9 has no select as a post-operation")
    if name.startswith("binary_"):
        kind, *details = values
        if details and dialect.major == 2:
            # benchdnn 2.x has names in the place of masks.
            details[0] = mask_policy(details[0])
        return ":".join([name.removeprefix("binary_"), kind, *details])
    if name == "prelu":
        return f"prelu:{mask_policy(values[0] if values else '0')}"
    if name in ("sum", "dw") or name.startswith("dw_"):
        return ":".join([name, *values])
    raise NotExpressibleError(f"benchdnn has no post-operation {name!r}")


HARDSWISH = ("0.166667", "0.5")
"""The constants of 2.x, x · (x / 6 + 1 / 2), which are parameters in 3.x."""


def eltwise(name: str, values: Sequence[str], dialect: Dialect) -> tuple[str, str, str]:
    """Return benchdnn's algorithm, alpha and beta for `eltwise_relu` and the log's alpha and beta.

    benchdnn's name of `eltwise_relu_use_dst_for_bwd` is `relu_dst`. From 2.x to 3.0 algorithms were
    renamed, and constants became parameters.
    """
    alpha, beta = values
    algorithm = name.removeprefix("eltwise_").replace("_use_dst_for_bwd", "_dst")
    if algorithm == "gelu":
        # The first GELU was the approximation by tanh.
        algorithm = "gelu_tanh"
    if dialect.major == 2:
        return algorithm, alpha, beta
    if algorithm == "bounded_relu":
        # `clip` has a lower bound too.
        return "clip", "0", alpha
    if algorithm == "logsigmoid":
        # −log(1 + exp(−x)) is soft ReLU with a factor of −1.
        return "soft_relu", "-1", "0"
    if algorithm == "soft_relu" and float(alpha) == 0:
        return "soft_relu", "1", "0"
    if algorithm == "hardswish" and float(alpha) == float(beta) == 0:
        return "hardswish", *HARDSWISH
    return algorithm, alpha, beta
