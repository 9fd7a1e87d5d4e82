"""Sum up a trace by operator, phase, module and category.

At every moment of a step one operator counts, so that operators and gaps add up to the wall time.
`match_log` takes oneDNN's own time of the same steps from its log. The verdicts are sentences for
terminal, JSON and page.
"""

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from statistics import median

from common.charts import Column, Table, text_column
from common.console import significant
from common.errors import InputError
from profiling.onednn_log.log import OneDnnLog
from profiling.trace.operators import (
    CATEGORIES,
    SHORT_NS,
    Category,
    Cell,
    Origins,
    Piece,
    Steps,
    find_steps,
    working_spans,
)
from profiling.trace.trace import OPTIMIZER_STEP, Stretch, Trace, overlay, stretches


@dataclass(slots=True)
class Operator:
    """The sums over all steps of an operator in a phase, called by a module."""

    name: str
    phase: str
    module: str  # Empty where it is not known
    category: Category
    calls: int = 0  # Calls that began within the steps
    own_ns: int = 0  # Self time on the steps' timeline


@dataclass
class Analysis:
    """Sums over all analyzed steps. Times in ns."""

    trace: Trace
    steps: Steps
    operators: list[Operator]
    pieces_ns: dict[Piece, int]  # Operator time by what kind of span it is in
    spans: int  # Calls of operators that began within the steps
    working: list[int]  # The working spans among them, by begin; places in the trace's columns
    median_working_ns: float
    switches: int  # Changes from a working span to one of another operator
    elsewhere_ns: int
    """Time of operators on threads that do not train, within the steps; those threads overlap."""
    origins: Origins

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.steps.numbers)

    @property
    def wall_ns(self) -> int:
        """The duration of all steps; equals the operators' own times and the gaps."""
        return self.phase_ns(None)

    @property
    def operator_ns(self) -> int:
        """The time in which an operator runs."""
        return sum(operator.own_ns for operator in self.operators)

    @property
    def gaps_ns(self) -> dict[str, int]:
        """The time in which no operator runs on any training thread, by phase."""
        return {phase: self._gap_ns(phase) for phase in self.steps.phases}

    @property
    def optimizer_steps(self) -> int:
        """The number of optimizer steps in the file, within its steps or not."""
        return sum(mark.text.startswith(OPTIMIZER_STEP) for mark in self.trace.annotations)

    @property
    def modules_are_known(self) -> bool:
        """Whether any operator's module is known."""
        # The first name is that of operators without a module.
        return len(self.origins.module_names) > 1

    @property
    def categories(self) -> list[Category]:
        """The categories that occur; oneDNN and other operators always."""
        used = {each.category for each in self.operators} | {Category.ONEDNN, Category.OTHER}
        return [category for category in CATEGORIES if category in used]

    def category_ns(self, category: Category, phase: str | None = None) -> int:
        """Return own time of a category, in one phase or all."""
        return sum(
            operator.own_ns
            for operator in self.operators
            if operator.category == category and phase in (None, operator.phase)
        )

    def phase_ns(self, phase: str | None) -> int:
        """Return the wall time of a phase, or of all."""
        cells = (cell for cell in self.steps.cells if phase in (None, cell.phase))
        return sum(cell.end - cell.start for cell in cells)

    def times_ms(self, phase: str | None) -> list[float]:
        """Return wall time, each category and gaps of a phase or of all. [ms a step]"""
        parts = [self.category_ns(category, phase) for category in self.categories]
        times = (self.phase_ns(phase), *parts, self._gap_ns(phase))
        return [time / 1e6 / self.count for time in times]

    def _gap_ns(self, phase: str | None) -> int:
        # Gaps are what is left, so that the parts add up to the wall time.
        inside = (each.own_ns for each in self.operators if phase in (None, each.phase))
        return self.phase_ns(phase) - sum(inside)


def analyze(trace: Trace, *, chosen: Sequence[int] | None = None) -> Analysis:
    """Add up the steps of a trace: those of the `chosen` numbers, or all that are marked.

    At every moment of a step one operator counts: the innermost on the main thread; where that
    runs none, the innermost on another thread that trains; where those run none, it is a gap. So
    operators and gaps add up to the wall time of the steps.

    Raises:
        InputError: The trace has no step of such a number.
    """
    steps = find_steps(trace, chosen)
    spans, by_thread = trace.operators, trace.by_thread
    origins = Origins(trace, main_thread=steps.main_thread)
    works, pieces = working_spans(spans, by_thread, around=origins.around)
    # The cell that each span of a training thread began in; -1 for none.
    begun = array("l", [-1]) * len(spans)
    starts = [cell.start for cell in steps.cells]
    for thread in steps.training_threads:
        for span in by_thread.get(thread, ()):
            place = bisect_right(starts, spans.start[span]) - 1
            if place >= 0 and spans.start[span] < steps.cells[place].end:
                begun[span] = place
    operators, pieces_ns = add_up(trace, steps, origins, begun=begun, pieces=pieces)
    working = sorted((span for span in works if begun[span] >= 0), key=spans.start.__getitem__)
    durations = [spans.end[span] - spans.start[span] for span in working]
    elsewhere = (
        stretch.end - stretch.start
        for thread, ordered in by_thread.items()
        if thread not in steps.training_threads
        for stretch, _ in clipped(stretches(spans, ordered), steps.cells)
    )
    return Analysis(
        trace=trace,
        steps=steps,
        operators=operators,
        pieces_ns=pieces_ns,
        spans=sum(place >= 0 for place in begun),
        working=working,
        median_working_ns=median(durations) if durations else 0.0,
        switches=sum(spans.name[span] != spans.name[other] for span, other in pairwise(working)),
        elsewhere_ns=sum(elsewhere),
        origins=origins,
    )


def clipped(timeline: Iterable[Stretch], cells: Sequence[Cell]) -> Iterator[tuple[Stretch, int]]:
    """Yield the parts of stretches inside cells, with the index of the cell; both are sorted."""
    place = 0
    for start, end, span in timeline:
        while place < len(cells) and cells[place].end <= start:
            place += 1
        # A stretch may cover several cells, and the next stretch may begin in the last of them.
        inside = place
        while inside < len(cells) and cells[inside].start < end:
            cell = cells[inside]
            yield Stretch(max(start, cell.start), min(end, cell.end), span), inside
            inside += 1


def add_up(
    trace: Trace, steps: Steps, origins: Origins, *, begun: Sequence[int], pieces: bytes
) -> tuple[list[Operator], dict[Piece, int]]:
    """Return own times and calls by operator, and operator time by kind of piece."""
    name, module, category = trace.operators.name, origins.module, origins.category
    # Numbers as keys: names are looked up once for each operator, not for each stretch.
    sums: dict[tuple[int, str, int, int], Operator] = {}

    def sum_of(span: int, place: int) -> Operator:
        phase = steps.cells[place].phase
        key = name[span], phase, module[span], category[span]
        if key not in sums:
            text, owner = trace.operators.span_name(span), origins.module_names[module[span]]
            sums[key] = Operator(text, phase, owner, CATEGORIES[category[span]])
        return sums[key]

    pieces_ns = dict.fromkeys(Piece, 0)
    ordered = (trace.by_thread.get(thread, ()) for thread in steps.training_threads)
    # The main thread is first: its operators take precedence over those of autograd's threads.
    timeline = reduce(overlay, (stretches(trace.operators, spans) for spans in ordered))
    for (start, end, span), place in clipped(timeline, steps.cells):
        sum_of(span, place).own_ns += end - start
        piece = Piece(pieces[span])
        # A long time between two calls is work of the caller itself, not fragmentation.
        is_long = piece == Piece.CALLING and end - start >= SHORT_NS
        pieces_ns[Piece.LONG if is_long else piece] += end - start
    for span, place in enumerate(begun):
        if place >= 0:
            sum_of(span, place).calls += 1
    return list(sums.values()), pieces_ns


@dataclass(frozen=True)
class Row:
    """An operator in a phase, called by a module: a row of operators.csv, means over the steps."""

    operator: str
    phase: str
    module: str
    calls: float
    self_ms: float
    share: float  # Share of the wall time of a step; 0 to 1
    category: str


def make_rows(analysis: Analysis) -> list[Row]:
    """Return all operators, the costliest first."""
    rows = [
        Row(
            operator=each.name,
            phase=each.phase,
            module=each.module,
            calls=each.calls / analysis.count,
            self_ms=each.own_ns / 1e6 / analysis.count,
            share=each.own_ns / analysis.wall_ns,
            category=each.category.value,
        )
        for each in analysis.operators
    ]
    # Names decide between equal times, so that equal traces give equal tables.
    return sorted(rows, key=lambda row: (-row.self_ms, row.operator, row.phase, row.module))


def costliest_outside_onednn(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each operator and phase, the costliest first.

    The module is that of the costliest calls, with its share of the time and the number of others.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.category != Category.ONEDNN.value:
            groups.setdefault((row.operator, row.phase, row.category), []).append(row)
    costliest = []
    for first, *others in groups.values():
        calls, self_ms, share = (
            sum(getattr(row, field) for row in (first, *others))
            for field in ("calls", "self_ms", "share")
        )
        module = first.module or "no module"
        if others:
            module += f", {first.self_ms / (self_ms or 1):.0%}, +{len(others)}"
        costliest.append(replace(first, module=module, calls=calls, self_ms=self_ms, share=share))
    return sorted(costliest, key=lambda row: (-row.self_ms, row.operator))


def phase_table(analysis: Analysis, title: str, number: Callable[[float], str]) -> Table:
    """Return a row for each phase, with its wall time, each category and gaps. [ms a step]"""
    names = ("wall time", *(category.value for category in analysis.categories), "gaps")
    return Table(
        title,
        [text_column("phase"), *(Column(name, number) for name in names)],
        [(phase, *analysis.times_ms(phase)) for phase in analysis.steps.phases],
        totals=[("all", *analysis.times_ms(None))],
    )


DEGREES = ((0.25, "fragmented"), (0.10, "a little fragmented"), (0.0, "hardly fragmented"))
"""Lower bounds of the share of short pieces in operator time, with their verdicts."""


def short_share(analysis: Analysis) -> float:
    """Return the share of operator time in pieces shorter than 0.1 ms."""
    short = analysis.pieces_ns[Piece.SHORT] + analysis.pieces_ns[Piece.CALLING]
    return short / analysis.operator_ns if analysis.operator_ns else 0.0


def gap_share(analysis: Analysis) -> float:
    """Return the share of wall time in gaps."""
    return sum(analysis.gaps_ns.values()) / analysis.wall_ns


def verdicts(analysis: Analysis, beside: "MatchedLog | None") -> list[str]:
    """Return sentences on oneDNN's share, also by its log if given, and on merging operators."""
    share = short_share(analysis)
    degree = next(name for least, name in DEGREES if share >= least)
    fragmentation = (
        f"{degree}: pieces shorter than 0.1 ms are {share:.1%} of operator time; gaps, in which no "
        f"operator runs, are {gap_share(analysis):.1%} of the time"
    )
    wall = analysis.wall_ns
    callers = analysis.category_ns(Category.ONEDNN) / wall
    onednn = f"operators that call oneDNN: {callers:.1%} of the time"
    # A trace does not show which library multiplied matrices; only oneDNN's log does.
    if beside is not None:
        itself = beside.total_ms * 1e6 * analysis.count / wall
        onednn = f"oneDNN itself, by its log: {itself:.1%}; {onednn}"
    elif products := analysis.category_ns(Category.PRODUCTS):
        library = "in oneDNN or another library (see --onednn-log)"
        onednn += f"; matrix products, {library}: {products / wall:.1%}"
    return [onednn, fragmentation]


def describe(analysis: Analysis) -> list[str]:
    """Return descriptions of the file and of the analyzed steps."""
    trace = analysis.trace
    seconds = [time / 1e9 for time in analysis.steps.durations.values()]
    numbers = ", ".join(map(str, analysis.steps.numbers))
    mean = significant(sum(seconds) / len(seconds))
    if not analysis.steps.are_marked:
        count = analysis.optimizer_steps
        trained = f", {count} optimizer steps" if count else ""
        steps = f"no marks of steps: the whole trace, {mean} s{trained}"
    elif len(seconds) == 1:
        steps = f"step {numbers}: {mean} s"
    else:
        bounds = f"{significant(min(seconds))} to {significant(max(seconds))}"
        spread = f"{mean} s on average, {bounds}"
        steps = f"steps {numbers}: {spread}; all numbers are per step"
    return [f"{trace.file}: {len(trace.operators):,} operator calls", steps]


def remarks(analysis: Analysis) -> Iterator[str]:
    """Yield remarks on what the trace lacks and what the analysis omits."""
    if analysis.trace.is_cut_off:
        yield "the file is truncated; the analysis covers what it contains"
    if not analysis.steps.phases_are_marked:
        yield "no marks of phases: forward is all time outside backward, optimizer and data"
    if not analysis.modules_are_known:
        yield "the trace has no modules; record it with with_stack=True"
    if analysis.elsewhere_ns:
        time = milliseconds(analysis.elsewhere_ns / 1e6 / analysis.count)
        yield f"operators of other threads are not included: {time} ms"
    if analysis.trace.gpu_events:
        yield f"{analysis.trace.gpu_events:,} GPU events are not included"


def milliseconds(value: float) -> str:
    """Format a time, with fewer decimals for larger values."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if 0 < value < 1 else f"{value:.1f}"


@dataclass
class MatchedLog:
    """oneDNN's own time by its log: means over the steps that count. [ms]"""

    log_ms: dict[str, float]  # By phase of the trace
    other_ms: float  # In phases that the trace does not have, and in none
    kinds_ms: dict[str, float]
    """By kind of primitive and direction, `convolution backward_data`; the costliest first."""
    has_steps: bool  # Whether the log marks steps; else it was taken as a whole

    @property
    def total_ms(self) -> float:
        """The time of a step."""
        return sum(self.log_ms.values()) + self.other_ms


def match_log(analysis: Analysis, log: OneDnnLog) -> MatchedLog:
    """Return the part of a log that belongs to the steps of a trace.

    Steps are matched by number, phases by name. A log without marks is taken as a whole, beside a
    trace that is.

    Raises:
        InputError: They do not fit: other steps, several ranks, marks in only one of them.
    """
    name = f"--onednn-log: {', '.join(log.files)}"
    numbers, count = analysis.steps.numbers, analysis.count
    missing = ", ".join(str(number) for number in numbers if number not in log.steps)
    if len(log.ranks) > 1:
        raise InputError(f"{name} has several ranks; give the log of the trace's rank")
    if log.steps and not analysis.steps.are_marked:
        raise InputError(f"{name} has marks of steps, the trace has none; they cannot match")
    if log.steps and missing:
        have = ", ".join(map(str, log.steps))
        raise InputError(f"{name} has steps {have}, not {missing}; select steps with --step")
    if analysis.steps.are_marked and missing:
        raise InputError(
            f"{name} has no marks of steps; train with equal profile.onednn.steps and "
            "profile.trace.steps"
        )
    log_ms = dict.fromkeys(analysis.steps.phases, 0.0)
    kinds_ms: defaultdict[str, float] = defaultdict(float)
    other_ms = 0.0
    for where, executions in log.executions.items():
        # Without marks both sides have the one step None.
        if where.step not in numbers:
            continue
        total_ms = sum(calls.total_ms for calls in executions.values())
        if where.phase in log_ms:
            log_ms[where.phase] += total_ms / count
        else:
            other_ms += total_ms
        for problem, calls in executions.items():
            direction = "" if problem.direction == "undef" else f" {problem.direction}"
            kinds_ms[f"{problem.kind}{direction}"] += calls.total_ms / count
    return MatchedLog(
        log_ms=log_ms,
        other_ms=other_ms / count,
        kinds_ms=dict(sorted(kinds_ms.items(), key=lambda item: -item[1])),
        has_steps=bool(log.steps),
    )
