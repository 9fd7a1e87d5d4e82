"""Where the time of steps goes: what an analysis of a trace holds."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from profiling.trace.categories import CATEGORIES, Category
from profiling.trace.origins import Origins
from profiling.trace.pieces import Piece
from profiling.trace.steps import Steps


class Operator(NamedTuple):
    """What is told apart in the table of operators."""

    name: str
    phase: str
    module: str
    """Empty where it is not known."""
    category: Category


@dataclass(slots=True)
class Cost:
    """Of one operator, in all steps together."""

    calls: int = 0
    """Those that began within the steps."""
    own_ns: int = 0
    """Self time on the steps' timeline."""


@dataclass
class Analysis:
    """Sums over all steps that count. Times in ns."""

    file: Path
    steps: Steps
    operators: dict[Operator, Cost]
    gaps_ns: dict[str, int]
    """Time in which no operator runs on any training thread, by phase."""
    pieces_ns: dict[Piece, int]
    """Operator time by what kind of span it is in."""
    spans: int
    """Calls of operators that began within the steps."""
    working: list[int]
    """The working spans among them, by begin; places in the trace's columns."""
    median_working_ns: float
    """Half of the working spans are shorter."""
    switches: int
    """Changes from a working span to one of another operator."""
    elsewhere_ns: int
    """Operators on threads that do not train: their own time within the steps."""
    origins: Origins
    """Of each span of the trace."""
    is_cut_off: bool
    """Whether the file ended too early."""
    gpu_events: int
    """Left out."""
    operators_in_file: int
    optimizer_steps: int
    """That the file marks, within steps or not."""

    @property
    def count(self) -> int:
        """Of steps."""
        return len(self.steps.numbers)

    @property
    def wall_ns(self) -> int:
        """Of all steps; equals the operators' own times and the gaps."""
        return sum(self.steps.durations.values())

    @property
    def operator_ns(self) -> int:
        """Time in which an operator runs."""
        return sum(cost.own_ns for cost in self.operators.values())

    @property
    def modules_are_known(self) -> bool:
        """Whether any operator's is."""
        return len(self.origins.module_names) > 1

    @property
    def categories(self) -> list[Category]:
        """Those that occur; communication only where there is some."""
        found = {one.category for one in self.operators} | {Category.ONEDNN, Category.OTHER}
        return [one for one in CATEGORIES if one in found]

    def category_ns(self, category: Category, phase: str | None = None) -> int:
        """Own time of a category, of one phase or all."""
        return sum(
            cost.own_ns
            for one, cost in self.operators.items()
            if one.category == category and phase in (None, one.phase)
        )

    def phase_ns(self, phase: str) -> int:
        """Wall time of a phase."""
        return sum(cell.end - cell.start for cell in self.steps.cells if cell.phase == phase)
