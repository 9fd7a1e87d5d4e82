"""What each span of a trace is: its caller, module and category; its step and phase; its length.

Modules come from annotations around operators, and for the backward pass from the sequence numbers
that autograd gives forward operators and the nodes that they make. Categories come from names.
Steps and phases are those that annotations mark; unmarked phases are recognized by torch's own
annotations and by what autograd runs.
"""

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from common.errors import InputError
from profiling.trace.trace import (
    NO_SEQUENCE,
    Annotation,
    ByThread,
    Spans,
    Trace,
    parents,
    stretches,
)

MODULE_MARK = "module: "

EVALUATE = "autograd::engine::evaluate_function: "
"""The prefix of the wrapper around each node that the backward pass runs."""
ACCUMULATE = f"{EVALUATE}torch::autograd::AccumulateGrad"
UNKNOWN = ""
"""The module of an operator that no module called, or whose module is not in the trace."""


@dataclass
class Origins:
    """Module, category and caller of each operator of a trace."""

    module: "array[int]"
    """A place in `module_names`."""
    category: "array[int]"
    """A place in `CATEGORIES`."""
    around: "array[int]"
    """The operator that called it, or -1."""
    module_names: list[str]


class _Node(NamedTuple):
    """A node of the graph that autograd runs, and what its operators inherit."""

    start: int
    module: int
    is_elsewhere: bool


def find_origins(trace: Trace, *, main_thread: int) -> Origins:
    """Return the origins of all operators.

    An operator's module is the innermost around it, by `module: NAME` annotations, else by torch's
    own spans of modules, whose names are joined: `Sequential_0.Conv2d_1`. An operator of the
    backward pass has the module of the forward operator that made its node: that of the same
    sequence number, and of several the last to begin. Nodes that store gradients have no number;
    they get the module of the node before them.
    """
    return _Follower(trace, main_thread).follow()


class _Follower:
    """Walks through the threads, the main one first, since forward comes before backward."""

    def __init__(self, trace: Trace, main_thread: int) -> None:
        self._trace = trace
        self._main = main_thread
        zeros = bytes(8 * len(trace.operators))
        self._origins = Origins(array("q", zeros), array("q", zeros), array("q", zeros), [UNKNOWN])
        self._places = {UNKNOWN: 0}
        self._categories = [CATEGORIES.index(category_of(one)) for one in trace.operators.names]
        self._made_by: dict[tuple[int, int], int] = {}
        """The forward operator by thread and sequence number."""
        self._elsewhere: set[tuple[int, int]] = set()
        """Nodes whose forward convolution was not oneDNN's."""

    def follow(self) -> Origins:
        marks = [
            one._replace(text=one.text.removeprefix(MODULE_MARK))
            for one in self._trace.annotations
            if one.text.startswith(MODULE_MARK)
        ]
        modules = marks or list(paths(self._trace.modules))
        for thread in sorted(self._trace.by_thread, key=lambda thread: thread != self._main):
            here = [one for one in modules if one.thread == thread]
            self._follow_thread(self._trace.by_thread[thread], here)
        return self._origins

    def _follow_thread(self, ordered: Sequence[int], modules: Sequence[Annotation]) -> None:
        spans, origins = self._trace.operators, self._origins
        nodes: dict[int, _Node] = {}
        last: _Node | None = None
        waiting, around = iter(modules), list[Annotation]()
        coming = next(waiting, None)
        for span, parent in parents(spans, ordered):
            start, name = spans.start[span], spans.name_of(span)
            while coming and coming.start <= start:
                around.append(coming)
                coming = next(waiting, None)
            while around and around[-1].end <= start:
                around.pop()
            origins.around[span] = parent
            node = nodes.get(parent)
            if name.startswith(EVALUATE):
                node = last = self._node(span, last)
            if node:
                nodes[span] = node
            is_inside = bool(around) and (node is None or around[-1].start >= node.start)
            module = self._place(around[-1].text) if is_inside else node.module if node else 0
            origins.module[span] = module
            self._note_category(span, name, node)
            if spans.sequence[span] != NO_SEQUENCE and not spans.is_backward[span]:
                key = spans.thread[span], spans.sequence[span]
                self._made_by[key] = span

    def _node(self, span: int, before: _Node | None) -> _Node:
        spans = self._trace.operators
        start, sequence = spans.start[span], spans.sequence[span]
        if sequence == NO_SEQUENCE:
            is_store = spans.name_of(span) == ACCUMULATE
            module = before.module if before and is_store else 0
            return _Node(start, module, is_elsewhere=False)
        key = self._forward_thread(span), sequence
        maker = self._made_by.get(key)
        module = 0 if maker is None else self._origins.module[maker]
        return _Node(start, module, is_elsewhere=key in self._elsewhere)

    def _forward_thread(self, span: int) -> int:
        spans = self._trace.operators
        place = spans.thread[span], spans.start[span]
        return self._trace.forward_threads.get(place, self._main)

    def _note_category(self, span: int, name: str, node: _Node | None) -> None:
        spans, origins = self._trace.operators, self._origins
        origins.category[span] = self._categories[spans.name[span]]
        if name == CONVOLUTION_BACKWARD and node and node.is_elsewhere:
            origins.category[span] = CATEGORIES.index(Category.OTHER)
        elif ELSEWHERE.match(name):
            one = span
            while one >= 0:
                self._elsewhere.add((spans.thread[one], spans.sequence[one]))
                one = origins.around[one]

    def _place(self, module: str) -> int:
        place = self._places.setdefault(module, len(self._origins.module_names))
        if place == len(self._origins.module_names):
            self._origins.module_names.append(module)
        return place


def paths(modules: Iterable[Annotation]) -> Iterator[Annotation]:
    """Yield modules by begin, each name after the names of those around it."""
    around: dict[int, list[Annotation]] = {}
    for one in modules:
        outer = around.setdefault(one.thread, [])
        while outer and outer[-1].end <= one.start:
            outer.pop()
        path = f"{outer[-1].text}.{one.text}" if outer else one.text
        outer.append(one._replace(text=path))
        yield outer[-1]


SHORT_NS = 100_000
"""Spans below 0.1 ms are short: calling an operator takes some 0.01 to 0.05 ms of them."""


class Piece(IntEnum):
    """The kinds of pieces into which operator time falls.

    A piece is a span that works, with all that it calls, or the time between two calls of a span
    that mostly calls others.
    """

    CALLING = 0
    """Between calls, less than 0.1 ms."""
    SHORT = 1
    """Work of less than 0.1 ms."""
    LONG = 2
    """Either, of 0.1 ms or longer."""


def own_times(spans: Spans, by_thread: ByThread) -> "array[int]":
    """Return the time of each span in which none of its children runs. [ns]"""
    own = array("q", bytes(8 * len(spans)))
    for ordered in by_thread.values():
        for start, end, span in stretches(spans, ordered):
            own[span] += end - start
    return own


def working_spans(
    spans: Spans, by_thread: ByThread, *, around: Sequence[int], own: Sequence[int]
) -> tuple["array[int]", bytes]:
    """Return the spans that work, and the kind of piece of each span.

    A span works if at least half of its duration is its own, and it lies in no other that does: a
    convolution works, and the allocations inside are parts of its work; `aten::conv2d` around it
    only calls.

    Args:
        spans: The operators.
        by_thread: In order, see `Spans.by_thread`.
        around: The caller of each span, or -1.
        own: The own time of each span. [ns]

    Returns:
        The places of working spans, and the kind of piece each span is in; `CALLING` stands for
        all that only call, however long.
    """
    pieces = bytearray(len(spans))
    works = array("q")
    for ordered in by_thread.values():
        for span in ordered:
            parent = around[span]
            if parent >= 0 and pieces[parent] != Piece.CALLING:
                pieces[span] = pieces[parent]
                continue
            duration = spans.end[span] - spans.start[span]
            if 2 * own[span] >= duration:
                pieces[span] = Piece.SHORT if duration < SHORT_NS else Piece.LONG
                works.append(span)
    return works, bytes(pieces)


CONVOLUTION_BACKWARD = "aten::convolution_backward"
"""Calls oneDNN without an operator of its own in between, in torch 2."""

ONEDNN = re.compile(
    r"""
    (aten::|mkldnn::|mkldnn_prepacked::)_*mkldnn_ |  # convolution, linear, pooling, reorders, rnn
    aten::to_mkldnn | mkldnn::_ |                    # and torch.compile's: _convolution_pointwise …
    onednn::q |                                      # quantized, torch.compile's
    aten::convolution_backward(_overrideable)?$ |
    torch_ipex::(convolution_(forward_impl|backward)|conv_transpose|ipex_linear|linear_backward)|
    torch_ipex::lstm | ipex::qlinear | ipex_prepack::(convolution|linear|deconv) |
    LlgaFusionGroup | llga::                         # oneDNN graph
    """,
    re.VERBOSE,
)
PRODUCTS = re.compile(
    r"""aten::(addmm_?|_addmm_activation|mm|bmm|baddbmm_?|addbmm_?|mv|addmv_?|dot|vdot|linear|
    matmul|_scaled_mm|_int_mm)$ | mkl::_ | torch_ipex::(ipex_MKLSGEMM|mkl_sgemm|bmm_|matmul)""",
    re.VERBOSE,
)
OURS = re.compile(
    r"""_(Winograd|Tile)?Convolution(Backward)?$ |        # of retinanet/engine: convolutions,
    _BatchNorm(Backward)?$ |                              # norms that train,
    _AddRelu$ | _BranchesBackward$ |                      # sums and masks
    (OnePassAdam|Lamb)\.step$ |                           # retinanet/engine/optimizers.py, lamb.py
    retinanet:: | GeneratedBackwardFor_retinanet_         # retinanet/loss/focal_kernel.py
    """,
    re.VERBOSE,
)
COMMUNICATION = re.compile(r"c10d::|gloo:|mpi:|ccl:|oneccl|nccl:|ucc:|record_param_comms")
ELSEWHERE = re.compile(
    r"aten::(_?slow_conv|slow_conv_dilated|thnn_conv|_conv_depthwise|_nnpack|xnnpack|cudnn_conv)"
)
"""Convolutions that oneDNN has no part in: float64, or where it is switched off."""


class Category(StrEnum):
    """Where time goes, in the order of tables and charts."""

    ONEDNN = "oneDNN"
    OURS = "our kernels"
    PRODUCTS = "matrix products"
    COMMUNICATION = "communication"
    OTHER = "other operators"


CATEGORIES = tuple(Category)


def category_of(name: str) -> Category:
    """Return the category of an operator's own time, by its name alone."""
    for pattern, category in (
        (ONEDNN, Category.ONEDNN),
        (OURS, Category.OURS),
        (PRODUCTS, Category.PRODUCTS),
        (COMMUNICATION, Category.COMMUNICATION),
    ):
        if pattern.match(name):
            return category
    return Category.OTHER


STEP_MARKS = (re.compile(r"step (\d+)"), re.compile(r"ProfilerStep#(\d+)"))
"""Ours, and those of `torch.profiler.schedule`; the first pattern that a trace has counts."""
PHASE_MARK = "phase: "
UNMARKED = "between phases"
WHOLE = None
"""The number of the one step of a trace in which none are marked."""


class Cell(NamedTuple):
    """A piece of a step that lies in one phase. [ns]"""

    start: int
    end: int
    step: int | None
    phase: str


@dataclass(frozen=True)
class Steps:
    """The part of a trace that counts."""

    cells: tuple[Cell, ...]
    """By time; together they cover the steps, and nothing twice."""
    main_thread: int
    """The thread that takes the steps."""
    training_threads: tuple[int, ...]
    """The main one, then those that run autograd's backward pass."""
    are_marked: bool
    phases_are_marked: bool

    @property
    def numbers(self) -> list[int | None]:
        """The steps' numbers."""
        return list(dict.fromkeys(cell.step for cell in self.cells))

    @property
    def phases(self) -> list[str]:
        """Phases in order of appearance; time between phases is last."""
        phases = list(dict.fromkeys(cell.phase for cell in self.cells))
        return sorted(phases, key=lambda phase: phase == UNMARKED)

    @property
    def durations(self) -> dict[int | None, int]:
        """Wall time of each step. [ns]"""
        durations: Counter[int | None] = Counter()
        for cell in self.cells:
            durations[cell.step] += cell.end - cell.start
        return dict(durations)


def find_steps(trace: Trace, chosen: Sequence[int] | None = None) -> Steps:
    """Return the steps and phases that annotations mark, or the whole trace.

    Where no phases are marked: backward is from the first node that autograd runs to the last
    before another operator; optimizer and data are torch's own annotations; forward is the rest.

    Args:
        trace: The trace.
        chosen: Numbers of steps; None: all that are marked.

    Raises:
        InputError: The trace has no step of such a number, or its operators take no time.
    """
    marks = step_marks(trace.annotations)
    main = marks[0][1].thread if marks else busiest_thread(trace)
    backward = set(threads_of(trace, EVALUATE)) - {main}
    training = (main, *sorted(backward))
    by_number = {number: (one.start, one.end) for number, one in marks if one.thread == main}
    windows = windows_of(trace, by_number, training, chosen)
    marked = [
        (one.start, one.end, one.text.removeprefix(PHASE_MARK))
        for one in trace.annotations
        if one.thread == main and one.text.startswith(PHASE_MARK)
    ]
    rest = UNMARKED if marked else "forward"
    intervals = marked or sorted(unmarked_phases(trace, main, training))
    cells = tuple(cut(windows, intervals, rest))
    if not cells:
        raise InputError(f"{trace.file}: its operators take no time")
    return Steps(
        cells=cells,
        main_thread=main,
        training_threads=training,
        are_marked=bool(marks),
        phases_are_marked=bool(marked),
    )


def step_marks(annotations: Iterable[Annotation]) -> list[tuple[int, Annotation]]:
    """Return each step's number and annotation, by time."""
    for pattern in STEP_MARKS:
        marks = [
            (int(match[1]), one) for one in annotations if (match := pattern.fullmatch(one.text))
        ]
        if marks:
            return marks
    return []


def busiest_thread(trace: Trace) -> int:
    """Return the thread with most forward operators, or with most where none is known as such."""
    operators = trace.operators
    forward = Counter(
        thread
        for thread, sequence, is_backward in zip(
            operators.thread, operators.sequence, operators.is_backward, strict=True
        )
        if sequence >= 0 and not is_backward
    )
    return (forward or Counter(operators.thread)).most_common(1)[0][0]


def threads_of(trace: Trace, beginning: str) -> set[int]:
    """Return the threads that run operators whose names begin so."""
    operators = trace.operators
    wanted = {place for place, name in enumerate(operators.names) if name.startswith(beginning)}
    return {
        thread
        for thread, name in zip(operators.thread, operators.name, strict=True)
        if name in wanted
    }


def windows_of(
    trace: Trace,
    marked: dict[int, tuple[int, int]],
    training: Sequence[int],
    chosen: Sequence[int] | None,
) -> dict[int | None, tuple[int, int]]:
    """Return begin and end of each step that counts, by number."""
    if chosen is not None:
        if not marked:
            raise InputError(f"--step: {trace.file} marks no steps; leave --step out")
        for number in chosen:
            if number not in marked:
                have = ", ".join(map(str, sorted(marked)))
                raise InputError(f"--step: {trace.file} has no step {number}; it has {have}")
    if marked:
        return {number: marked[number] for number in (chosen or whole_steps(trace, marked))}
    operators = trace.operators
    places = [span for span, thread in enumerate(operators.thread) if thread in training]
    begin = min(operators.start[span] for span in places)
    return {WHOLE: (begin, max(operators.end[span] for span in places))}


def whole_steps(trace: Trace, marked: dict[int, tuple[int, int]]) -> list[int]:
    """Return all steps but those that a cut-off file holds in part; at least one."""
    if not trace.is_cut_off:
        return list(marked)
    last = max(trace.operators.start)
    return [number for number, (_, end) in marked.items() if end <= last] or [min(marked)]


OF_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
OF_DATA = "enumerate(DataLoader)#"


def unmarked_phases(
    trace: Trace, main: int, training: Sequence[int]
) -> Iterator[tuple[int, int, str]]:
    """Yield begin, end and name of backward, optimizer and data, by what torch itself records."""
    for one in trace.annotations:
        if one.thread == main and one.text.startswith(OF_OPTIMIZER):
            yield one.start, one.end, "optimizer"
        elif one.thread == main and one.text.startswith(OF_DATA):
            yield one.start, one.end, "data"
    operators = trace.operators
    outermost = sorted(
        (operators.start[span], span)
        for thread in training
        for span, parent in parents(operators, trace.by_thread.get(thread, ()))
        if parent < 0
    )
    run: tuple[int, int] | None = None
    for start, span in outermost:
        if operators.name_of(span).startswith(EVALUATE):
            first, last = run or (start, start)
            run = first, max(last, operators.end[span])
        elif run:
            yield *run, "backward"
            run = None
    if run:
        yield *run, "backward"


def cut(
    windows: dict[int | None, tuple[int, int]],
    phases: Sequence[tuple[int, int, str]],
    rest: str,
) -> Iterator[Cell]:
    """Cut the steps into phases; where several overlap, the last to begin counts.

    `phases` are begin, end and name; `rest` is the name of time in none of them.
    """
    spans = Spans()
    for begin, end, name in phases:
        spans.add(name, thread=0, start=begin, end=end)
    pieces = list(stretches(spans, spans.by_thread().get(0, ())))
    for number, (begin, end) in sorted(windows.items(), key=lambda item: item[1]):
        now, cells = begin, list[Cell]()
        for place in range(bisect_right(pieces, begin, key=lambda one: one.end), len(pieces)):
            start, end_of_piece, span = pieces[place]
            if start >= end:
                break
            if start > now:
                cells.append(Cell(now, start, number, rest))
            now = min(end_of_piece, end)
            cells.append(Cell(max(start, begin), now, number, spans.name_of(span)))
        if now < end:
            cells.append(Cell(now, end, number, rest))
        yield from joined(cells)


def joined(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Merge neighbours of one phase."""
    last: Cell | None = None
    for cell in cells:
        if last and last.phase == cell.phase:
            last = last._replace(end=cell.end)
            continue
        if last:
            yield last
        last = cell
    if last:
        yield last
