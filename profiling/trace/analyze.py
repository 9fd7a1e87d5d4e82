"""Where the time of steps goes: from a trace to its sums."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from statistics import median

from profiling.trace.analysis import Analysis, Cost, Operator
from profiling.trace.categories import CATEGORIES
from profiling.trace.cells import Cell
from profiling.trace.origins import Origins, find_origins
from profiling.trace.pieces import SHORT_NS, Piece, own_times, working_spans
from profiling.trace.spans import Stretch, overlay, stretches
from profiling.trace.steps import Steps, find_steps
from profiling.trace.trace import OPTIMIZER_STEP, Trace


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
