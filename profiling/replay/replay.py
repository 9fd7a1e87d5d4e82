"""What came out of running a log's problems again."""

from dataclasses import dataclass, field

from profiling.onednn_log.problem import Problem


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under what a log's problems ran, as far as it says, and are to be run again."""

    threads: int
    cpus: tuple[int, ...] = ()
    """Logical CPUs; none: those that this process may use."""
    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes that memory comes from; none: as the kernel chooses."""


@dataclass(frozen=True, slots=True)
class ReplayTime:
    """One problem, run again several times."""

    hot_ms: float
    """Median of runs one after the other: data is in the caches, as far as it fits."""
    cold_ms: float | None
    """Median of runs whose data was driven out of the caches before; None: not measured."""
    runs: int
    """Runs that each median is over."""
    implementation: str
    """What the library chose, in a log's words."""


@dataclass(frozen=True)
class Replay:
    """Times of problems, and how they were taken."""

    runner: str
    """`benchdnn` or `torch`."""
    version: str
    """oneDNN's: `3.7.2`."""
    instruction_set: str
    """As the library calls it."""
    conditions: Conditions
    times: dict[Problem, ReplayTime] = field(default_factory=dict)
    not_replayed: dict[Problem, str] = field(default_factory=dict)
    """Why a problem has no time, in one line."""
    other_cores: float = 0.0
    """Cores that other work kept busy meanwhile; 0 where a file does not say."""
