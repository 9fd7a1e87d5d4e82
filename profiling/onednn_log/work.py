"""A problem of the log: the work given to oneDNN, its implementation, and its amount.

The arithmetic is that of the direct algorithm, with padding counted as if it were multiplied, as
`profiling.bench.recipes.step` has it; a Winograd implementation does less. It is counted for kinds
that multiply matrices; all other kinds are bound by memory. Bytes are those of every tensor once:
the traffic of the memory bus if nothing stays in a cache from before and everything needed twice
does. Functions that count raise ValueError, KeyError or IndexError where a shape is not as it is
known; `gflop` and `gbyte` return None there.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

COMPUTING = ("convolution", "deconvolution", "matmul", "inner_product", "gemm", "brgemm", "rnn")
"""The kinds of primitive that multiply matrices; the others move or touch up data."""


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """One tensor of a primitive: `src:bf16:a:blocked:acdb::f0`."""

    role: str  # `src`, `wei`, `bia`, `dst`, `diff_src`, `data`, `ws`, `src0` …, as in the log
    type: str  # `f32`, `bf16`, `u8` …; `undef` where there is no such tensor
    properties: str = ""
    """Letters: `a` the library chose the layout, `p` padded, `o` padding offset, `0` offset."""
    kind: str = "blocked"  # `blocked`, `any`, `wino`, `rnn_packed`, `opaque`, `sparse`, `undef` …
    tag: str = ""  # The layout: `acdb`, `aBcd16b`; empty where the kind implies it
    strides: str = ""
    """`150528x1x672x3` where the tensor is not dense; logs before 3.0 do not have them."""
    flags: str = ""  # `f0`, or what the library adds to a layout, such as `f8:s8m1`

    @property
    def is_there(self) -> bool:
        """Whether the primitive has this tensor."""
        return self.type != "undef"

    @property
    def layout(self) -> str:
        """The tag, or the kind where there is none; with strides where they are not dense."""
        name = self.tag or self.kind
        return f"{name}({self.strides})" if self.strides else name


@lru_cache(maxsize=4096)
def tensor_fields(memories: tuple[MemoryDescriptor, ...], name: str) -> str:
    """Return a field of each tensor that is there, after its role; one text for equal tensors."""
    return " ".join(f"{item.role}:{getattr(item, name)}" for item in memories if item.is_there)


TYPE = (
    r"undef|f64|f32|tf32|bf16|f16|f8_e5m2|f8_e4m3|f4_e2m1|f4_e3m0|e8m0|s64|s32|s8|u8|s4|u4|boolean"
)
NEW_SPELLING = re.compile(rf"(?P<role>[a-z]\w*):(?P<type>{TYPE})(?::(?P<rest>.*))?")
OLD_SPELLING = re.compile(rf"(?P<role>[a-z]\w*?)_(?P<type>{TYPE}):(?P<rest>.*)")
FLAGS = re.compile(r"f\d+(_mask\d+)?")


@lru_cache(maxsize=4096)
def parse_memories(text: str) -> tuple[MemoryDescriptor, ...]:
    """Read the tensors of a primitive, which blanks separate.

    Raises:
        ValueError: One of them is no memory descriptor.
    """
    return tuple(map(parse_memory, text.split()))


@lru_cache(maxsize=4096)
def parse_memory(text: str) -> MemoryDescriptor:
    """Read `src_f32::blocked:abcd:f0` (1.x to 3.6) or `src:f32::blocked:abcd::f0` (from 3.7 on).

    Raises:
        ValueError: It is neither.
    """
    match = OLD_SPELLING.fullmatch(text) or NEW_SPELLING.fullmatch(text)
    if not match:
        raise ValueError(f"not a memory descriptor: {text}")
    properties, kind, *fields = [*(match["rest"] or "").split(":"), "", ""][:12]
    # Strides are a field of their own from 3.0 on, so the first flag shows where the tag ends.
    flags = [place for place, field in enumerate(fields) if FLAGS.fullmatch(field)]
    first_flag = flags[0] if flags else len(fields)
    tag, strides = [*fields[:first_flag], "", ""][:2]
    return MemoryDescriptor(
        role=match["role"],
        type=match["type"],
        properties=properties,
        kind=kind,
        tag=tag,
        strides=strides,
        flags=":".join(fields[first_flag:]).rstrip(":"),
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """One distinct line of a log, without its time.

    Two lines with equal problems differ in nothing but when they ran and how long they took.
    """

    component: str  # `primitive`, `graph` or `ukernel`
    engine: str  # `cpu` or `gpu`, as in the log: `gpu:0`, `cpu2gpu` for a reorder between two
    kind: str  # `convolution`, `matmul`, `reorder` …; for a graph the kind of partition
    implementation: str  # `brg_conv_fwd:avx512_core_bf16`, `jit:uni` …
    direction: str
    """oneDNN's propagation kind: `forward_training`, `forward_inference`, `backward_data`,
    `backward_weights`, `backward`, or `undef` where a primitive has none."""
    memories: tuple[MemoryDescriptor, ...]
    """In the log's order. Empty for graphs, and where a kind has none."""
    attributes: str
    """As in the log, blanks trimmed: `attr-scratchpad:user attr-post-ops:eltwise_relu`."""
    auxiliary: str  # As in the log: `alg:convolution_direct`, `axis:1`, `flags:GR` …
    shape: str  # As in the log: `mb2_ic64oc64_ih200oh200kh1…`, `400x256:256x64`, `2x256x100x100`

    @property
    def name(self) -> str:
        """Kind and direction: `convolution forward_training`, `matmul`."""
        return self.kind if self.direction == "undef" else f"{self.kind} {self.direction}"

    @property
    def types(self) -> str:
        """The type of each tensor that is there: `src:bf16 wei:bf16 dst:bf16`."""
        return tensor_fields(self.memories, "type")

    @property
    def layouts(self) -> str:
        """The layout of each tensor that is there: `src:acdb wei:Acdb64a dst:acdb`."""
        return tensor_fields(self.memories, "layout")

    @property
    def algorithm(self) -> str:
        """`convolution_direct`, `eltwise_relu`, `pooling_max` …; empty where a kind has none."""
        return self.fields.get("alg", "")

    @property
    def fields(self) -> dict[str, str]:
        """The auxiliary fields by name: `{"alg": "eltwise_relu", "alpha": "0"}`."""
        return dict(field.partition(":")[::2] for field in self.auxiliary.split())

    @property
    def post_ops(self) -> tuple[str, ...]:
        """Fused operations in their order: `("sum", "eltwise_relu")`."""
        match = re.search(r"(?<!\S)attr-post-ops:(\S+)", self.attributes)
        return tuple(match[1].split("+")) if match else ()

    @property
    def is_computing(self) -> bool:
        """Whether the problem is a convolution or a matrix product."""
        return self.kind in COMPUTING

    def memory(self, role: str) -> MemoryDescriptor | None:
        """Return the tensor of a role, or None if there is none."""
        return next((item for item in self.memories if item.role == role and item.is_there), None)


REFERENCE = re.compile(r"(^|[:_+])ref([:_+]|$)")
BY_GEMM = re.compile(r"(^|[:+])gemm(:|$)")
CONVOLUTIONS = ("convolution", "deconvolution")


def is_fallback(problem: Problem) -> bool:
    """Return whether the implementation is a reference, or a convolution through GEMM."""
    name = problem.implementation
    # GEMM is the fast path of a matrix product, but a convolution through it copies its input.
    by_gemm = problem.kind in CONVOLUTIONS and BY_GEMM.search(name) is not None
    return by_gemm or REFERENCE.search(name) is not None


def gflop(problem: Problem) -> float | None:
    """Return multiplications and additions [10⁹], or None where they are not counted."""
    count = FLOP.get(problem.kind)
    if count is None or problem.component == "graph":
        return None
    return known_count(count, problem)


def gbyte(problem: Problem) -> float | None:
    """Return the size of all tensors [10⁹ bytes], or None where the log does not have it."""
    if problem.component == "graph" or problem.kind in ("rnn", "sdpa"):
        return None  # the shape does not give the sizes of all tensors
    return known_count(TENSOR_BYTES.get(problem.kind, uniform_bytes), problem)


def known_count(count: Callable[[Problem], float], problem: Problem) -> float | None:
    """Return a count [10⁹], None if the shape is not fixed or has an unknown form."""
    try:
        return count(problem) / 1e9
    except (ValueError, KeyError, IndexError, ArithmeticError):  # no groups, endless sizes
        return None


Dimensions = tuple[int, ...]


def named_sizes(shape: str) -> dict[str, int]:
    """Return `mb2_ic64oc64_ih200oh200kh3…` as names and sizes; `n"…"` and the like are ignored."""
    return {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", shape.replace("_", ""))}


def listed_sizes(shape: str) -> list[Dimensions]:
    """Return `400x256:256x64` as one tuple for each tensor.

    Raises:
        ValueError: A size is unknown until the primitive runs (`*`), or is no number.
    """
    return [tuple(map(int, tensor.split("x"))) for tensor in shape.split(":")]


def multiply_sizes(sizes: dict[str, int], names: Sequence[str]) -> int:
    """Return the product of the sizes that are there."""
    return prod(sizes.get(name, 1) for name in names)


SOURCE, TARGET, WINDOW = (("id", "ih", "iw"), ("od", "oh", "ow"), ("kd", "kh", "kw"))
"""Spatial sizes of input, output and kernel."""


def product_sizes(shape: str) -> tuple[int, int, int, int]:
    """Return batch, rows, columns and inner size: of `b2m3n4k5` (1.x), or `2x3x5:2x5x4`.

    Raises ValueError, KeyError or IndexError where it is neither.
    """
    if not shape[:1].isdigit():
        sizes = named_sizes(shape)
        return sizes.get("b", sizes.get("mb", 1)), sizes["m"], sizes["n"], sizes["k"]
    left, right = listed_sizes(shape)[:2]
    # Batches of size 1 are broadcast, as in torch.
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


def convolution_flop(problem: Problem) -> float:
    """Count convolutions and deconvolutions."""
    sizes = named_sizes(problem.shape)
    # Each weight is used once for each output of a convolution, or input of a deconvolution.
    places = multiply_sizes(sizes, SOURCE if problem.kind == "deconvolution" else TARGET)
    channels = sizes["ic"] * sizes["oc"] / sizes.get("g", 1)
    return 2 * sizes["mb"] * channels * places * multiply_sizes(sizes, WINDOW)


def product_flop(problem: Problem) -> float:
    """Count matrix products; a micro-kernel adds up `bs:` of them, as its auxiliary field has."""
    return 2 * prod(product_sizes(problem.shape)) * int(problem.fields.get("bs", 1))


def recurrent_flop(problem: Problem) -> float:
    """Count products with the layer's and the iteration's weights; backward has two for each."""
    sizes = named_sizes(problem.shape)
    gates = {"vanilla_rnn": 1, "vanilla_lstm": 4, "vanilla_gru": 3, "lbr_gru": 3}[problem.algorithm]
    directions = 2 if "bidirectional" in problem.auxiliary else 1
    # slc and sic: the channels of the layer's input and of the previous iteration's state.
    each = 2 * sizes["mb"] * gates * sizes["dhc"] * (sizes["slc"] + sizes["sic"])
    passes = 2 if problem.direction.startswith("backward") else 1
    return each * sizes["l"] * sizes["t"] * directions * passes


def attention_flop(problem: Problem) -> float:
    """Count products of query by key, then by value."""
    query, key, value = listed_sizes(problem.shape)[:3]
    return 2 * prod(query) * key[-1] + 2 * prod(query[:-1]) * value[-2] * value[-1]


PRODUCTS = ("matmul", "gemm", "gemm_api", "brgemm")
POOLING = ("pooling", "resampling")
INNER = ("ic", *SOURCE)
FLOP: dict[str, Callable[[Problem], float]] = {
    "convolution": convolution_flop,
    "deconvolution": convolution_flop,
    **dict.fromkeys(PRODUCTS, product_flop),
    "inner_product": lambda p: 2 * multiply_sizes(named_sizes(p.shape), ("mb", "oc", *INNER)),
    "rnn": recurrent_flop,
    "sdpa": attention_flop,
}

BYTES = {
    **dict.fromkeys(("f64", "s64"), 8.0),
    **dict.fromkeys(("f32", "tf32", "s32"), 4.0),
    **dict.fromkeys(("bf16", "f16"), 2.0),
    **dict.fromkeys(("f4_e2m1", "f4_e3m0", "s4", "u4"), 0.5),
    "undef": 0.0,
}
"""Bytes of one number; types not named here have one byte."""


def count_bytes(problem: Problem, **elements: float) -> float:
    """Return bytes of the tensors that are there, from their numbers of elements by role."""
    return sum(elements.get(m.role, 0.0) * BYTES.get(m.type, 1.0) for m in problem.memories)


def named_bytes(problem: Problem) -> float:
    """Count convolutions, fully connected layers, pooling and resampling."""
    sizes = named_sizes(problem.shape)
    images, channels = sizes["mb"], sizes["ic"]
    # The workspace of max pooling has the place of the maximum for each output.
    is_pooling = problem.kind in POOLING  # as many channels on both sides
    outputs = channels if is_pooling else sizes["oc"]
    # A fully connected layer's weights cover the whole input.
    window = multiply_sizes(sizes, SOURCE if problem.kind == "inner_product" else WINDOW)
    target = images * outputs * multiply_sizes(sizes, TARGET)
    return count_bytes(
        problem,
        src=images * channels * multiply_sizes(sizes, SOURCE),
        wei=outputs * channels * window / sizes.get("g", 1),
        bia=outputs,
        dst=target,
        ws=target if is_pooling else 0,
    )


def product_bytes(problem: Problem) -> float:
    """Count matrix products."""
    batch, rows, columns, inner = product_sizes(problem.shape)
    weights = inner * columns * batch
    if problem.shape[:1].isdigit():
        weights = prod(listed_sizes(problem.shape)[1])  # one matrix may serve the whole batch
    source, target = batch * rows * inner, batch * rows * columns
    return count_bytes(problem, src=source, wei=weights, bia=columns, dst=target)


def listed_bytes(problem: Problem) -> float:
    """Count a shape for each source, and a result as large as all or as the largest of them."""
    shapes = listed_sizes(problem.shape)
    if problem.kind == "reduction":
        return count_bytes(problem, src=prod(shapes[0]), dst=prod(shapes[1]))
    target = prod(max(sizes) for sizes in zip(*shapes, strict=True))  # broadcast
    if problem.kind == "concat":
        target = sum(map(prod, shapes))
    sources = (memory for memory in problem.memories if memory.role != "dst")
    pairs = zip(sources, shapes, strict=False)
    read = sum(prod(shape) * BYTES.get(memory.type, 1.0) for memory, shape in pairs)
    return read + count_bytes(problem, dst=target)


def uniform_bytes(problem: Problem) -> float:
    """Count all tensors with the shape of the first; `data` is read, and also written."""
    shape = problem.shape.partition(":")[0]
    if shape.startswith("x"):  # how 2.x and 3.x name the size of a tensor of one dimension
        size = int(shape[1:])
    # Group normalization has its groups before the images.
    elif re.match(r"(?:g\d+)?mb", shape):
        size = multiply_sizes(named_sizes(shape), ("mb", *INNER))
    else:
        size = prod(listed_sizes(shape)[0])
    # The shape does not have the sizes of statistics and workspaces.
    roles = (m for m in problem.memories if m.role not in ("stats", "ws"))
    total = sum(size * BYTES.get(memory.type, 1.0) for memory in roles)
    data = problem.memory("data")
    return total + (size * BYTES.get(data.type, 1.0) if data else 0.0)


TENSOR_BYTES: dict[str, Callable[[Problem], float]] = {
    **dict.fromkeys(("convolution", "deconvolution", "inner_product", *POOLING), named_bytes),
    **dict.fromkeys(PRODUCTS, product_bytes),
    **dict.fromkeys(("binary", "concat", "reduction"), listed_bytes),
}

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

DIRECTIONS = {
    "forward": "FWD_D",
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "backward": "BWD_DW",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
}
"""benchdnn's names of oneDNN's propagation kinds, without a bias."""
WITH_BIAS = {"FWD_D": "FWD_B", "FWD_I": "FWD_B", "BWD_W": "BWD_WB"}

DIRECTION_COLOURS = {
    "forward": "#3c8ddc",
    "backward data": "#f08c00",
    "backward weights": "#e6194b",
    "backward": "#c2255c",
    "": "#868e96",
}
"""By direction of propagation as `direction_name` has it; without one: what only moves data."""


def direction_name(direction: str) -> str:
    """Return the readable name of a propagation kind; training and inference share one."""
    if direction.startswith("forward"):
        return "forward"
    return "" if direction == "undef" else direction.replace("_", " ")


def readable(problem: Problem) -> str:
    """Return a readable description: `convolution backward data, 3×3, 256 → 36, 2 × 100×100, bf16`.

    oneDNN's own shape stands in where it is of no known form.
    """
    sizes = window_terms(problem) or [problem.shape.replace("x", "×").replace(":", " by ")]
    tensors = [memory for memory in problem.memories if memory.is_there]
    types = "/".join(dict.fromkeys(memory.type for memory in tensors))
    if problem.kind == "reorder" and len(tensors) == 2:
        source, target = tensors
        types = f"{source.type} {source.layout} to {target.type} {target.layout}"
    return ", ".join([kind_and_direction(problem.kind, problem.direction), *sizes, types])


def kind_and_direction(kind: str, direction: str) -> str:
    """Return the name, such as `convolution backward data`; training and inference differ."""
    return f"{kind}{'' if direction == 'undef' else f' {direction}'}".replace("_", " ")


def window_terms(problem: Problem) -> list[str]:
    """Return the sizes of a sliding window; empty for other kinds."""
    if problem.shape[:1].isdigit():
        return []
    sizes = named_sizes(problem.shape)
    # One size for each axis that is there: `3×3`.
    kernel, stride, dilation, maps = (
        "×".join(str(sizes[letter + axis]) for axis in "dhw" if letter + axis in sizes)
        for letter in "ksdi"
    )
    if not {"mb", "ic"} <= sizes.keys() or not kernel:
        return []
    if set(stride.split("×")) != {"1"}:
        kernel += f" stride {stride}"
    if set(dilation.split("×")) - {"0", ""}:
        kernel += f" dilation {dilation}"
    channels = f"{sizes['ic']} → {sizes['oc']}" if "oc" in sizes else str(sizes["ic"])
    groups = f" in {sizes['g']} groups" if sizes.get("g", 1) > 1 else ""
    return [kernel, f"{channels}{groups}", f"{sizes['mb']} × {maps}"]
