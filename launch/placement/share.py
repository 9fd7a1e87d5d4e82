"""What ranks ask of a host, and what each gets."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CoreRequest:
    """Cores that each rank asks for. [physical cores]"""

    threads: int | None = None
    """Compute threads, one a core; None: all cores that are left."""
    comm_cores: int = 0
    """For communication: `launch.comm_cores`."""
    loader_cores: int = 0
    """For loading images: `data.reserve_cores`."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's part of a host."""

    socket: int
    nodes: tuple[int, ...]
    """NUMA nodes that its cores belong to."""
    cpus: tuple[int, ...]
    """CPUs of its compute threads, one a core: exactly `threads` of them, more where it floats."""
    comm_cpus: tuple[int, ...]
    """CPUs for communication, one a core."""
    loader_cpus: tuple[int, ...]
    """All CPUs, hyperthreads included, of the cores that load images."""
    threads: int
    """Compute threads."""
    floating: bool
    """Whether the threads move among `cpus`, because a CPU quota gives fewer than there are."""

    @property
    def main_cpus(self) -> tuple[int, ...]:
        """The CPU that the main thread is bound to while it computes; empty: it is not bound.

        The other compute threads are each bound to a core. A main thread that may leave its own
        moves, as soon as another program runs there, to the core of one of these: two threads of a
        team then share a core, and every parallel region waits for both.
        """
        return () if self.floating else self.cpus[:1]
