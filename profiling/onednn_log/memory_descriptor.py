"""Descriptions of tensors as oneDNN's log has them."""

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
