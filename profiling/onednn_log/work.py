"""A problem of the log: what oneDNN was asked to do, how it did it, and how much work that is.

The arithmetic is that of the direct algorithm, with padding counted as if it were multiplied, as
`profiling.bench.recipes.step` has it; a Winograd implementation does less. It is counted for
what multiplies matrices; all other kinds are bound by memory. Bytes are those of every tensor once:
what would cross the memory bus if nothing stayed in a cache from before and everything needed twice
did. Functions that count raise ValueError, KeyError or IndexError where a shape is not as it is
known; `gflop` and `gbyte` return None there.

Here too: descriptions of tensors, sizes in shapes as the log spells them, benchdnn's names of
kinds, and names of problems and directions for tables and charts.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """One tensor of a primitive: `src:bf16:a:blocked:acdb::f0`."""

    role: str
    """`src`, `wei`, `bia`, `dst`, `diff_src`, `data`, `ws`, `src0` …, as in the log."""
    type: str
    """`f32`, `bf16`, `u8` …; `undef` where there is no such tensor."""
    properties: str = ""
    """Letters: `a` the library chose the layout, `p` padded, `o` padding offset, `0` offset."""
    kind: str = "blocked"
    """`blocked`, `any`, `wino`, `rnn_packed`, `opaque`, `sparse`, `undef` …"""
    tag: str = ""
    """The layout: `acdb`, `aBcd16b`; empty where the kind says it all."""
    strides: str = ""
    """`150528x1x672x3` where the tensor is not dense; logs before 3.0 do not have them."""
    flags: str = ""
    """`f0`, or what the library adds to a layout, such as `f8:s8m1`."""

    @property
    def is_there(self) -> bool:
        """Whether the primitive has such a tensor at all."""
        return self.type != "undef"

    @property
    def layout(self) -> str:
        """The tag, or the kind where there is none; with strides where they are not dense."""
        name = self.tag or self.kind
        return f"{name}({self.strides})" if self.strides else name


@dataclass(frozen=True, slots=True)
class Problem:
    """One distinct line of a log, without its time.

    Two lines with equal problems differ in nothing but when they ran and how long they took.
    """

    component: str
    """`primitive`, `graph` or `ukernel`."""
    engine: str
    """`cpu` or `gpu`, as in the log: `gpu:0`, `cpu2gpu` for a reorder between two."""
    kind: str
    """`convolution`, `matmul`, `reorder` …; for a graph the kind of partition."""
    implementation: str
    """`brg_conv_fwd:avx512_core_bf16`, `jit:uni` …"""
    direction: str
    """oneDNN's propagation kind: `forward_training`, `forward_inference`, `backward_data`,
    `backward_weights`, `backward`, or `undef` where a primitive has none."""
    memories: tuple[MemoryDescriptor, ...]
    """In the log's order. Empty for graphs, and where a kind has none."""
    attributes: str
    """As in the log, blanks trimmed: `attr-scratchpad:user attr-post-ops:eltwise_relu`."""
    auxiliary: str
    """As in the log: `alg:convolution_direct`, `axis:1`, `flags:GR` …"""
    shape: str
    """As in the log: `mb2_ic64oc64_ih200oh200kh1…`, `400x256:256x64`, `2x256x100x100`."""

    @property
    def name(self) -> str:
        """Kind and direction: `convolution forward_training`, `matmul`."""
        return self.kind if self.direction == "undef" else f"{self.kind} {self.direction}"

    @property
    def types(self) -> str:
        """Of each tensor that is there: `src:bf16 wei:bf16 dst:bf16`."""
        return types_of(self.memories)

    @property
    def layouts(self) -> str:
        """Of each tensor that is there: `src:acdb wei:Acdb64a dst:acdb`."""
        return layouts_of(self.memories)

    @property
    def algorithm(self) -> str:
        """`convolution_direct`, `eltwise_relu`, `pooling_max` …; empty where a kind has none."""
        for word in self.auxiliary.split():
            name, _, value = word.partition(":")
            if name == "alg":
                return value
        return ""

    @property
    def is_computing(self) -> bool:
        """Whether it multiplies matrices."""
        return self.kind in COMPUTING

    def memory(self, role: str) -> MemoryDescriptor | None:
        """Return the tensor of that role, or None where it is not there."""
        return next((one for one in self.memories if one.role == role and one.is_there), None)


def gflop(problem: Problem) -> float | None:
    """Return multiplications and additions [10⁹], or None where they are not counted."""
    count = FLOP.get(problem.kind)
    if count is None or problem.component == "graph":
        return None
    return _known(count, problem)


def gbyte(problem: Problem) -> float | None:
    """Return the size of all tensors [10⁹ bytes], or None where the log does not have it."""
    if problem.component == "graph" or problem.kind in NOT_COUNTED:
        return None
    return _known(TENSOR_BYTES.get(problem.kind, alike), problem)


def _known(count: Callable[[Problem], float], problem: Problem) -> float | None:
    """Return a count in 10⁹, None where the shape is not fixed or not as it is known."""
    try:
        return count(problem) / 1e9
    except (ValueError, KeyError, IndexError, ArithmeticError):  # no groups, endless sizes
        return None


GATES = {"vanilla_rnn": 1, "vanilla_lstm": 4, "vanilla_gru": 3, "lbr_gru": 3}


def _convolution_flop(problem: Problem) -> float:
    sizes = named_sizes(problem.shape)
    # Each weight meets each output of a convolution, and each input of a deconvolution.
    side = "i" if problem.kind == "deconvolution" else "o"
    places = prod(sizes.get(side + axis, 1) for axis in "dhw")
    window = prod(sizes.get("k" + axis, 1) for axis in "dhw")
    channels = sizes["ic"] * sizes["oc"] / sizes.get("g", 1)
    return 2 * sizes["mb"] * channels * places * window


def _product_flop(problem: Problem) -> float:
    batch, rows, columns, inner = product_sizes(problem.shape)
    return 2 * batch * rows * columns * inner * _named_factor(problem.auxiliary, "bs")


def _named_factor(auxiliary: str, name: str) -> int:
    """Return the number after `name:` in the auxiliary field, 1 where it is not there."""
    values = dict(word.partition(":")[::2] for word in auxiliary.split())
    return int(values.get(name, 1))


def _inner_product_flop(problem: Problem) -> float:
    sizes = named_sizes(problem.shape)
    return 2 * prod(sizes.get(name, 1) for name in ("mb", "ic", "id", "ih", "iw", "oc"))


def _recurrent_flop(problem: Problem) -> float:
    """Count products with the layer's and the iteration's weights; backward has two for each."""
    sizes = named_sizes(problem.shape)
    gates = GATES[problem.algorithm]
    directions = 2 if "bidirectional" in problem.auxiliary else 1
    each = 2 * sizes["mb"] * gates * sizes["dhc"] * (sizes["slc"] + sizes["sic"])
    passes = 2 if problem.direction.startswith("backward") else 1
    return each * sizes["l"] * sizes["t"] * directions * passes


def _attention_flop(problem: Problem) -> float:
    """Count products of query by key, then by value."""
    query, key, value = listed_sizes(problem.shape)[:3]
    return 2 * prod(query) * key[-1] + 2 * prod(query[:-1]) * value[-2] * value[-1]


FLOP: dict[str, Callable[[Problem], float]] = {
    "convolution": _convolution_flop,
    "deconvolution": _convolution_flop,
    "matmul": _product_flop,
    "gemm": _product_flop,
    "gemm_api": _product_flop,
    "brgemm": _product_flop,
    "inner_product": _inner_product_flop,
    "rnn": _recurrent_flop,
    "sdpa": _attention_flop,
}

BYTES = {
    "f64": 8.0,
    "s64": 8.0,
    "f32": 4.0,
    "tf32": 4.0,
    "s32": 4.0,
    "bf16": 2.0,
    "f16": 2.0,
    "f4_e2m1": 0.5,
    "f4_e3m0": 0.5,
    "s4": 0.5,
    "u4": 0.5,
    "undef": 0.0,
}
"""Of one number; those not named here have one byte."""

NOT_COUNTED = ("rnn", "sdpa")
"""Kinds whose shape does not give their tensors' sizes."""


def _sum_of(problem: Problem, sizes: dict[str, float]) -> float:
    """Return bytes of the tensors that are there, from their numbers of elements by role."""
    return sum(sizes.get(one.role, 0.0) * BYTES.get(one.type, 1.0) for one in problem.memories)


def _convolution_bytes(problem: Problem) -> float:
    sizes = named_sizes(problem.shape)
    window = prod(sizes.get("k" + axis, 1) for axis in "dhw")
    source = prod(sizes.get("i" + axis, 1) for axis in "dhw")
    target = prod(sizes.get("o" + axis, 1) for axis in "dhw")
    elements_of: dict[str, float] = {
        "src": sizes["mb"] * sizes["ic"] * source,
        "wei": sizes["oc"] * sizes["ic"] * window / sizes.get("g", 1),
        "bia": sizes["oc"],
        "dst": sizes["mb"] * sizes["oc"] * target,
    }
    return _sum_of(problem, elements_of)


def _product_bytes(problem: Problem) -> float:
    batch, rows, columns, inner = product_sizes(problem.shape)
    weights = inner * columns * (batch if not problem.shape[:1].isdigit() else 1)
    if problem.shape[:1].isdigit():
        weights = prod(listed_sizes(problem.shape)[1])
    elements_of: dict[str, float] = {
        "src": batch * rows * inner,
        "wei": weights,
        "bia": columns,
        "dst": batch * rows * columns,
    }
    return _sum_of(problem, elements_of)


def _inner_product_bytes(problem: Problem) -> float:
    sizes = named_sizes(problem.shape)
    inner = prod(sizes.get(name, 1) for name in ("ic", "id", "ih", "iw"))
    elements_of: dict[str, float] = {
        "src": sizes["mb"] * inner,
        "wei": sizes["oc"] * inner,
        "bia": sizes["oc"],
        "dst": sizes["mb"] * sizes["oc"],
    }
    return _sum_of(problem, elements_of)


def _window_bytes(problem: Problem) -> float:
    """Count pooling and resampling: as many channels on both sides."""
    sizes = named_sizes(problem.shape)
    each = sizes["mb"] * sizes["ic"]
    source = each * prod(sizes.get("i" + axis, 1) for axis in "dhw")
    target = each * prod(sizes.get("o" + axis, 1) for axis in "dhw")
    return _sum_of(problem, {"src": source, "dst": target, "ws": target})


def _listed_bytes(problem: Problem) -> float:
    """Count a shape for each source, and a result as large as all or as the largest of them."""
    shapes = listed_sizes(problem.shape)
    if problem.kind == "reduction":
        return _sum_of(problem, {"src": prod(shapes[0]), "dst": prod(shapes[1])})
    target = _broadcast(shapes)
    if problem.kind == "concat":
        target = sum(map(prod, shapes))
    sources = [one for one in problem.memories if one.role != "dst"]
    read = sum(
        prod(shape) * BYTES.get(one.type, 1.0) for one, shape in zip(sources, shapes, strict=False)
    )
    return read + _sum_of(problem, {"dst": target})


Dimensions = tuple[int, ...]


def _broadcast(shapes: list[Dimensions]) -> int:
    return prod(max(sizes) for sizes in zip(*shapes, strict=True))


def alike(problem: Problem) -> float:
    """Count all tensors with the shape of the first; `data` is read, and also written."""
    each = elements(problem.shape.partition(":")[0])
    passed = [one for one in problem.memories if one.role not in ("stats", "ws")]
    total = sum(each * BYTES.get(one.type, 1.0) for one in passed)
    data = problem.memory("data")
    return total + (each * BYTES.get(data.type, 1.0) if data else 0.0)


TENSOR_BYTES: dict[str, Callable[[Problem], float]] = {
    "convolution": _convolution_bytes,
    "deconvolution": _convolution_bytes,
    "matmul": _product_bytes,
    "gemm": _product_bytes,
    "gemm_api": _product_bytes,
    "brgemm": _product_bytes,
    "inner_product": _inner_product_bytes,
    "pooling": _window_bytes,
    "resampling": _window_bytes,
    "binary": _listed_bytes,
    "concat": _listed_bytes,
    "reduction": _listed_bytes,
}

NAMED = re.compile(r"([a-z]+)(\d+)")


def named_sizes(shape: str) -> dict[str, int]:
    """Return `mb2_ic64oc64_ih200oh200kh3…` as names and sizes; `n"…"` and the like are ignored."""
    return {name: int(size) for name, size in NAMED.findall(shape.replace("_", ""))}


def listed_sizes(shape: str) -> list[Dimensions]:
    """Return `400x256:256x64` as one tuple for each tensor.

    Raises:
        ValueError: A size is unknown until the primitive runs (`*`), or is no number.
    """
    return [tuple(map(int, tensor.split("x"))) for tensor in shape.split(":")]


def elements(shape: str) -> int:
    """Return the elements of one tensor, in either spelling: `2x256x100x100`, `mb2ic256ih100iw100`.

    Raises ValueError, see `listed_sizes`.
    """
    if shape.startswith("x"):  # how 2.x and 3.x name the size of a tensor of one dimension
        return int(shape[1:])
    if not re.match(r"(?:g\d+)?mb", shape):
        return prod(listed_sizes(shape)[0])
    named = named_sizes(shape)
    return prod(named.get(name, 1) for name in ("mb", "ic", "id", "ih", "iw"))


def product_sizes(shape: str) -> tuple[int, int, int, int]:
    """Return batch, rows, columns and inner size: of `b2m3n4k5` (1.x), or `2x3x5:2x5x4`.

    Raises ValueError, KeyError or IndexError where it is neither.
    """
    if not shape[:1].isdigit():
        sizes = named_sizes(shape)
        return sizes.get("b", sizes.get("mb", 1)), sizes["m"], sizes["n"], sizes["k"]
    left, right = listed_sizes(shape)[:2]
    batch = prod(max(pair) for pair in zip(left[:-2], right[:-2], strict=True))
    return batch, left[-2], right[-1], left[-1]


def modern_shape(problem: Problem) -> str:
    """Return the shape as 3.x spells it: earlier versions have a matrix product's result too."""
    if problem.kind != "matmul":
        return problem.shape
    try:
        batch, rows, columns, inner = product_sizes(problem.shape)
    except (ValueError, KeyError, IndexError):
        return problem.shape
    if problem.shape[:1].isdigit():
        return ":".join(problem.shape.split(":")[:2])
    lead = f"{batch}x" if batch > 1 else ""
    return f"{lead}{rows}x{inner}:{lead}{inner}x{columns}"


DRIVERS = {
    "batch_normalization": "bnorm",
    "convolution": "conv",
    "deconvolution": "deconv",
    "group_normalization": "gnorm",
    "inner_product": "ip",
    "layer_normalization": "lnorm",
    "pooling": "pool",
}
"""By oneDNN's name, where the two differ."""

COMPUTING = ("convolution", "deconvolution", "matmul", "inner_product", "gemm", "brgemm", "rnn")
"""The kinds of primitive that multiply matrices; the others move or touch up data."""


@lru_cache(maxsize=4096)
def types_of(memories: tuple[MemoryDescriptor, ...]) -> str:
    """Return the type of each tensor that is there; one text for equal tensors."""
    return " ".join(f"{one.role}:{one.type}" for one in memories if one.is_there)


@lru_cache(maxsize=4096)
def layouts_of(memories: tuple[MemoryDescriptor, ...]) -> str:
    """Return the layout of each tensor that is there; one text for equal tensors."""
    return " ".join(f"{one.role}:{one.layout}" for one in memories if one.is_there)


TYPE = (
    r"undef|f64|f32|tf32|bf16|f16|f8_e5m2|f8_e4m3|f4_e2m1|f4_e3m0|e8m0|s64|s32|s8|u8|s4|u4|boolean"
)
NEW_SPELLING = re.compile(rf"(?P<role>[a-z]\w*):(?P<type>{TYPE})(?::(?P<rest>.*))?")
OLD_SPELLING = re.compile(rf"(?P<role>[a-z]\w*?)_(?P<type>{TYPE}):(?P<rest>.*)")
FLAGS = re.compile(r"f\d+(_mask\d+)?")


@functools.lru_cache(maxsize=4096)
def parse_memories(text: str) -> tuple[MemoryDescriptor, ...]:
    """Read the tensors of a primitive, which blanks separate.

    Raises:
        ValueError: One of them is no memory descriptor.
    """
    return tuple(map(parse_memory, text.split()))


@functools.lru_cache(maxsize=4096)
def parse_memory(text: str) -> MemoryDescriptor:
    """Read `src_f32::blocked:abcd:f0` (1.x to 3.6) or `src:f32::blocked:abcd::f0` (from 3.7 on).

    Raises:
        ValueError: It is neither.
    """
    found = OLD_SPELLING.fullmatch(text) or NEW_SPELLING.fullmatch(text)
    if not found:
        raise ValueError(f"not a memory descriptor: {text}")
    properties, kind, *rest = [*(found["rest"] or "").split(":"), "", ""][:12]
    first_flag = next(
        (place for place, part in enumerate(rest) if FLAGS.fullmatch(part)), len(rest)
    )
    tag, strides = [*rest[:first_flag], "", ""][:2]
    return MemoryDescriptor(
        role=found["role"],
        type=found["type"],
        properties=properties,
        kind=kind,
        tag=tag,
        strides=strides,
        flags=":".join(rest[first_flag:]).rstrip(":"),
    )


DIRECTION_COLOURS = {
    "forward": "#3c8ddc",
    "backward data": "#f08c00",
    "backward weights": "#e6194b",
    "backward": "#c2255c",
    "": "#868e96",
}
"""By direction of propagation as `direction_name` has it; without one: what only moves data."""


def direction_name(direction: str) -> str:
    """Return oneDNN's propagation kind in words, training and inference together."""
    if direction.startswith("forward"):
        return "forward"
    return "" if direction == "undef" else direction.replace("_", " ")


SPATIAL_AXES = "dhw"


def readable(problem: Problem) -> str:
    """Return a problem in words: `convolution backward data, 3×3, 256 → 36, 2 × 100×100, bf16`.

    oneDNN's own shape stands in where it is of no known form.
    """
    sizes = window_words(problem) or [problem.shape.replace("x", "×").replace(":", " by ")]
    return ", ".join(
        [kind_and_direction(problem.kind, problem.direction), *sizes, *type_words(problem)]
    )


def kind_and_direction(kind: str, direction: str) -> str:
    """Return such as `convolution backward data`; training and inference are kept apart."""
    words = "" if direction == "undef" else f" {direction}"
    return f"{kind}{words}".replace("_", " ")


def window_words(problem: Problem) -> list[str]:
    """Return the sizes of what slides a window over images; nothing for other kinds."""
    if problem.shape[:1].isdigit():
        return []
    sizes = named_sizes(problem.shape)
    if not {"mb", "ic"} <= sizes.keys() or not any(f"k{axis}" in sizes for axis in SPATIAL_AXES):
        return []
    kernel, stride, dilation = (sizes_text(sizes, letter) for letter in ("k", "s", "d"))
    words = [kernel]
    if set(stride.split("×")) != {"1"}:
        words[0] += f" stride {stride}"
    if set(dilation.split("×")) - {"0", ""}:
        words[0] += f" dilation {dilation}"
    channels = f"{sizes['ic']} → {sizes['oc']}" if "oc" in sizes else str(sizes["ic"])
    words.append(f"{channels} in {sizes['g']} groups" if sizes.get("g", 1) > 1 else channels)
    words.append(f"{sizes['mb']} × {sizes_text(sizes, 'i')}")
    return words


def sizes_text(sizes: dict[str, int], letter: str) -> str:
    """Return one size for each axis that is there: `3×3`."""
    return "×".join(str(sizes[letter + axis]) for axis in SPATIAL_AXES if letter + axis in sizes)


def type_words(problem: Problem) -> list[str]:
    """Return the types, once each; for a reorder both types and layouts."""
    there = [memory for memory in problem.memories if memory.is_there]
    if problem.kind == "reorder" and len(there) == 2:
        source, target = there
        return [f"{source.type} {source.layout} to {target.type} {target.layout}"]
    return ["/".join(dict.fromkeys(memory.type for memory in there))]
