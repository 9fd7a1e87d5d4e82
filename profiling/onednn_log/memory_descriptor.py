"""Descriptions of tensors as oneDNN's log has them."""

import functools
import re
from dataclasses import dataclass


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
