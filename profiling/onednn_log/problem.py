"""What oneDNN was asked to do, and how it did it: a problem of the log."""

from dataclasses import dataclass
from functools import lru_cache

from profiling.onednn_log.memory_descriptor import MemoryDescriptor

COMPUTING = ("convolution", "deconvolution", "matmul", "inner_product", "gemm", "brgemm", "rnn")
"""The kinds of primitive that multiply matrices; the others move or touch up data."""


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
