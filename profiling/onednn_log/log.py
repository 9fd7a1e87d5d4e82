"""What a log holds once it is read: calls and their times by problem, and what went with them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from profiling.onednn_log.problem import Problem


class Where(NamedTuple):
    """Where in a training a line was written; None where the log does not say."""

    rank: int | None = None
    step: int | None = None
    phase: str | None = None
    """One of `profiling.onednn_log.marks.PHASES`, as `profile.onednn` marks them."""


@dataclass(slots=True)
class Calls:
    """How often a problem ran, and how long."""

    count: int = 0
    total_ms: float = 0.0

    @property
    def mean_ms(self) -> float:
        """Milliseconds a call."""
        return self.total_ms / self.count

    def add_one(self, milliseconds: float) -> None:
        """Take in a call."""
        self.count += 1
        self.total_ms += milliseconds

    def add(self, other: "Calls") -> None:
        """Take in the calls of another place."""
        self.count += other.count
        self.total_ms += other.total_ms


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A line that looks like oneDNN's and is none that is known."""

    file: str
    line: int
    """Counted from 1."""
    text: str
    """Its beginning."""
    why: str


@dataclass
class OneDnnLog:
    """One log or several, read together."""

    files: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    """`3.7.1`, one for each version that wrote, in order of appearance; none without a header."""
    instruction_sets: list[str] = field(default_factory=list)
    """As the library calls them: `Intel AVX-512 with Intel DL Boost and bfloat16 support`."""
    runtimes: list[str] = field(default_factory=list)
    """`OpenMP`, `TBB` …"""
    threads: list[int] = field(default_factory=list)
    """`nthr` of each header that differs."""
    facts: list[dict[str, object]] = field(default_factory=list)
    """What a run of ours writes about itself, once a rank; see `profiling.onednn_log.marks`."""
    executions: dict[Where, dict[Problem, Calls]] = field(default_factory=dict)
    creations: dict[Problem, Calls] = field(default_factory=dict)
    """Making a primitive, with the state of its cache in `creation_states`."""
    creation_states: Counter[str] = field(default_factory=Counter)
    """`cache_hit`, `cache_miss`, `nested_cache_hit`, `from_cache_blob` …"""
    dispatches: Counter[str] = field(default_factory=Counter)
    """Why implementations were passed over, by reason."""
    messages: Counter[str] = field(default_factory=Counter)
    """Errors, warnings and failed checks, by text."""
    phase_ms: dict[Where, float] = field(default_factory=dict)
    """Wall-clock time of phases and, with `phase=None`, of whole steps, from marks."""
    lines: int = 0
    """Of all files, other programs' included."""
    onednn_lines: int = 0
    """Those that look like oneDNN's."""
    not_understood_count: int = 0
    not_understood: list[NotUnderstood] = field(default_factory=list)
    """The first of them."""

    def calls(self, keep: Callable[[Where], bool] = lambda _: True) -> dict[Problem, Calls]:
        """Executions by problem, over all places that `keep` keeps; not to be changed."""
        places = [problems for where, problems in self.executions.items() if keep(where)]
        if len(places) == 1:
            return places[0]
        merged: dict[Problem, Calls] = {}
        for problems in places:
            for problem, calls in problems.items():
                merged.setdefault(problem, Calls()).add(calls)
        return merged

    @property
    def total_ms(self) -> float:
        """Time of all executions."""
        return sum(
            calls.total_ms for problems in self.executions.values() for calls in problems.values()
        )

    @property
    def ranks(self) -> list[int]:
        """Ranks that the log tells apart."""
        return sorted({where.rank for where in self.executions if where.rank is not None})

    @property
    def run_threads(self) -> list[int]:
        """Compute threads of a rank, each number once: of its facts, else of the headers.

        A header has the threads of the moment at which the library was loaded.
        """
        told = [facts.get("threads") for facts in self.facts]
        from_facts = [number for number in told if isinstance(number, int) and number > 0]
        return list(dict.fromkeys(from_facts)) or self.threads

    @property
    def steps(self) -> list[int]:
        """Training steps that the log tells apart."""
        return sorted({where.step for where in self.executions if where.step is not None})
