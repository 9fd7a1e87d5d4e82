"""Where the time of steps goes: what an analysis of a trace holds.

TODO-DOC Where the time of steps goes: from a trace to its sums.

TODO-DOC What an analysis comes to, in a sentence or two.

TODO-DOC oneDNN's own time of the same steps, from its log, beside what the trace tells.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from common.errors import InputError
from profiling.onednn_log.log import OneDnnLog, Where
from profiling.trace.operators import (
    CATEGORIES,
    SHORT_NS,
    Category,
    Cell,
    Origins,
    Piece,
    Steps,
    find_origins,
    find_steps,
    own_times,
    working_spans,
)
from profiling.trace.trace import OPTIMIZER_STEP, Stretch, Trace, overlay, stretches


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


def analyze(trace: Trace, *, chosen: Sequence[int] | None = None) -> Analysis:
    """Sum up the steps of a trace.

    At every moment of a step one operator counts: the innermost on the main thread; where that
    runs none, the innermost on another thread that trains; where those run none, it is a gap. So
    operators and gaps add up to the wall time of the steps.

    Args:
        trace: As it was read.
        chosen: Numbers of steps; all that are marked where it is None.

    Raises:
        InputError: A step that was chosen is not there.
    """
    steps = find_steps(trace, chosen)
    spans, by_thread = trace.operators, trace.by_thread
    origins = find_origins(trace, main_thread=steps.main_thread)
    own = own_times(spans, by_thread)
    works, pieces = working_spans(spans, by_thread, around=origins.around, own=own)
    begun = cells_of_begins(trace, steps)
    operators, pieces_ns = add_up(trace, steps, origins, begun=begun, pieces=pieces)
    working = sorted((one for one in works if begun[one] >= 0), key=spans.start.__getitem__)
    durations = [spans.end[one] - spans.start[one] for one in working]
    return Analysis(
        file=trace.file,
        steps=steps,
        operators=operators,
        gaps_ns=gaps(steps, operators),
        pieces_ns=pieces_ns,
        spans=sum(one >= 0 for one in begun),
        working=working,
        median_working_ns=median(durations) if durations else 0.0,
        switches=changes([spans.name[one] for one in working]),
        elsewhere_ns=time_elsewhere(trace, steps),
        origins=origins,
        is_cut_off=trace.is_cut_off,
        gpu_events=trace.gpu_events,
        operators_in_file=len(spans),
        optimizer_steps=sum(one.text.startswith(OPTIMIZER_STEP) for one in trace.annotations),
    )


def training_timeline(trace: Trace, threads: Sequence[int]) -> Iterator[Stretch]:
    """Which operator counts when: the first thread's, then those of the others."""
    operators = trace.operators
    return reduce(overlay, (stretches(operators, trace.by_thread.get(one, ())) for one in threads))


def clipped(timeline: Iterable[Stretch], cells: Sequence[Cell]) -> Iterator[tuple[Stretch, int]]:
    """What of the stretches lies in the cells, each with its cell's place; both by time."""
    place = 0
    for start, end, span in timeline:
        while place < len(cells) and cells[place].end <= start:
            place += 1
        inside = place
        while inside < len(cells) and cells[inside].start < end:
            cell = cells[inside]
            yield Stretch(max(start, cell.start), min(end, cell.end), span), inside
            inside += 1


def cells_of_begins(trace: Trace, steps: Steps) -> "array[int]":
    """For each span of a training thread the cell that it began in; -1 where in none."""
    found = array("l", [-1]) * len(trace.operators)
    cells = steps.cells
    for thread in steps.training_threads:
        place = 0
        for span in trace.by_thread.get(thread, ()):
            start = trace.operators.start[span]
            while place < len(cells) and cells[place].end <= start:
                place += 1
            if place < len(cells) and cells[place].start <= start:
                found[span] = place
    return found


def add_up(
    trace: Trace, steps: Steps, origins: Origins, *, begun: Sequence[int], pieces: bytes
) -> tuple[dict[Operator, Cost], dict[Piece, int]]:
    """Own times and calls by operator, and operator times by the length of their pieces."""
    name, module, category = trace.operators.name, origins.module, origins.category
    phases = [steps.phases.index(cell.phase) for cell in steps.cells]
    found: defaultdict[tuple[int, int, int, int], Cost] = defaultdict(Cost)
    pieces_ns = dict.fromkeys(Piece, 0)
    timeline = training_timeline(trace, steps.training_threads)
    for (start, end, span), place in clipped(timeline, steps.cells):
        found[name[span], phases[place], module[span], category[span]].own_ns += end - start
        piece = Piece(pieces[span])
        is_long = piece == Piece.CALLING and end - start >= SHORT_NS
        pieces_ns[Piece.LONG if is_long else piece] += end - start
    for span, place in enumerate(begun):
        if place >= 0:
            found[name[span], phases[place], module[span], category[span]].calls += 1
    operators = {
        Operator(
            trace.operators.names[of_name],
            steps.phases[phase],
            origins.module_names[of_module],
            CATEGORIES[of_category],
        ): cost
        for (of_name, phase, of_module, of_category), cost in found.items()
    }
    return operators, pieces_ns


def gaps(steps: Steps, operators: dict[Operator, Cost]) -> dict[str, int]:
    """Time of each phase in which no operator runs."""
    found = Counter(dict.fromkeys(steps.phases, 0))
    for cell in steps.cells:
        found[cell.phase] += cell.end - cell.start
    for one, cost in operators.items():
        found[one.phase] -= cost.own_ns
    return dict(found)


def time_elsewhere(trace: Trace, steps: Steps) -> int:
    """Within the steps, of operators on threads that do not train; those threads overlap."""
    return sum(
        piece.end - piece.start
        for thread, ordered in trace.by_thread.items()
        if thread not in steps.training_threads
        for piece, _ in clipped(stretches(trace.operators, ordered), steps.cells)
    )


def changes(names: Iterable[int]) -> int:
    """How often one name follows another."""
    return sum(one != other for one, other in pairwise(names))


DEGREES = ((0.25, "fragmented"), (0.10, "a little fragmented"), (0.0, "hardly fragmented"))
"""From which share of operator time in short pieces on we say so."""


def short_share(analysis: Analysis) -> float:
    """Of operator time, what is in pieces shorter than 0.1 ms."""
    short = analysis.pieces_ns[Piece.SHORT] + analysis.pieces_ns[Piece.CALLING]
    return short / analysis.operator_ns if analysis.operator_ns else 0.0


def gap_share(analysis: Analysis) -> float:
    """Of wall time, what is in gaps."""
    return sum(analysis.gaps_ns.values()) / analysis.wall_ns


def fragmentation_verdict(analysis: Analysis) -> str:
    """Whether operators should be merged."""
    share = short_share(analysis)
    degree = next(name for least, name in DEGREES if share >= least)
    text = f"{degree}: {share:.1%} of operator time is in pieces shorter than 0.1 ms"
    return f"{text}; in gaps, where no operator runs, is {gap_share(analysis):.1%} of the time"


def onednn_verdict(analysis: Analysis, log_ms: float | None = None) -> str:
    """How much is oneDNN's: as far as the trace can tell, and by its log if there is one.

    `log_ms`: oneDNN's own time of a step.
    """
    wall = analysis.wall_ns
    certain = analysis.category_ns(Category.ONEDNN) / wall
    text = f"operators that call oneDNN: {certain:.1%} of the time"
    if log_ms is not None:
        return f"oneDNN itself, by its log: {log_ms * 1e6 * analysis.count / wall:.1%}; {text}"
    products = analysis.category_ns(Category.PRODUCTS) / wall
    unknown = f"matrix products, by oneDNN or another library (--onednn-log tells): {products:.1%}"
    return f"{text}; {unknown}" if products else text


@dataclass
class BesideLog:
    """Means over the steps that count. [ms]"""

    log_ms: dict[str, float]
    """oneDNN's own time, by phase of the trace."""
    other_ms: float
    """In phases that the trace does not have."""
    kinds_ms: dict[str, float]
    """The same by what it did: `convolution backward_data`; the costliest first."""
    has_steps: bool
    """Whether the log tells steps apart; else it was taken as a whole."""

    @property
    def total_ms(self) -> float:
        """Of a step."""
        return sum(self.log_ms.values()) + self.other_ms


def lay_beside(analysis: Analysis, log: OneDnnLog) -> BesideLog:
    """Take from a log what belongs to the steps of a trace.

    Steps are matched by number, phases by name. A log without marks is taken as a whole, beside a
    trace that is.

    Raises:
        InputError: They do not fit: other steps, several ranks, marks in only one of them.
    """
    name = ", ".join(log.files)
    if len(log.ranks) > 1:
        raise InputError(f"--onednn-log: {name} has several ranks; give that of the trace's rank")
    numbers = analysis.steps.numbers
    if analysis.steps.are_marked:
        missing = [number for number in numbers if number not in log.steps]
        if missing:
            raise InputError(f"--onednn-log: {name} {what_it_has(log.steps, missing)}")
    elif log.steps:
        raise InputError(f"--onednn-log: {name} marks steps, the trace does not; they cannot match")
    places = [where for where in log.executions if where.step in numbers]
    return BesideLog(
        log_ms=by_phase(log, places, analysis),
        other_ms=other_phases(log, places, analysis),
        kinds_ms=by_kind(log, places, steps=len(numbers)),
        has_steps=bool(log.steps),
    )


def what_it_has(have: Sequence[int], missing: Sequence[int | None]) -> str:
    """Why steps cannot be matched, and what to do."""
    if not have:
        return "marks no steps; train with profile.onednn.steps and profile.trace.steps alike"
    some = ", ".join(map(str, missing))
    return f"has steps {', '.join(map(str, have))}, and not {some}; choose with --step"


def by_phase(log: OneDnnLog, places: Sequence[Where], analysis: Analysis) -> dict[str, float]:
    """Of each phase of the trace, if the log names it."""
    found = dict.fromkeys(analysis.steps.phases, 0.0)
    for where in places:
        if where.phase in found:
            found[where.phase] += time_of(log, where) / analysis.count
    return found


def other_phases(log: OneDnnLog, places: Sequence[Where], analysis: Analysis) -> float:
    """Of phases that the trace does not have, and of none."""
    return (
        sum(time_of(log, where) for where in places if where.phase not in analysis.steps.phases)
        / analysis.count
    )


def by_kind(log: OneDnnLog, places: Sequence[Where], *, steps: int) -> dict[str, float]:
    """By kind of primitive and direction."""
    found: defaultdict[str, float] = defaultdict(float)
    for where in places:
        for problem, calls in log.executions[where].items():
            direction = "" if problem.direction == "undef" else f" {problem.direction}"
            found[f"{problem.kind}{direction}"] += calls.total_ms / steps
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def time_of(log: OneDnnLog, where: Where) -> float:
    """All executions at a place. [ms]"""
    return sum(calls.total_ms for calls in log.executions[where].values())
