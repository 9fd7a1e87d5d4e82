"""What oneDNN was asked to do, and how it did it: a problem of the log.

TODO-DOC Descriptions of tensors as oneDNN's log has them.

TODO-DOC Directions of propagation: their names and colours in every table and chart.
"""

import functools
import re
from dataclasses import dataclass
from functools import lru_cache

COMPUTING = ("convolution", "deconvolution", "matmul", "inner_product", "gemm", "brgemm", "rnn")
"""The kinds of primitive that multiply matrices; the others move or touch up data."""


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
    """`150528x1x672x3` where the tensor is not dense; logs before 3.0 do not tell."""
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
        """The tensor of that role, or None where it is not there."""
        for one in self.memories:
            if one.role == role and one.is_there:
                return one
        return None


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
    """oneDNN's propagation kind as people say it, training and inference together."""
    if direction.startswith("forward"):
        return "forward"
    return "" if direction == "undef" else direction.replace("_", " ")
