"""What a description of a host says about one CPU, before cores are numbered."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class CpuFacts:
    """One online CPU."""

    cpu: int
    core_id: tuple[int, ...]
    """Names the core within its socket."""
    socket: int
    node: int
    """NUMA node; 0 where the host has none."""
