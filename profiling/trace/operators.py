"""Properties of each span of a trace: caller, module and category; step and phase; length.

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
from itertools import groupby
from typing import NamedTuple

from common.errors import InputError
from profiling.trace.trace import (
    BETWEEN,
    NO_SEQUENCE,
    OUR_STEP,
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
UNKNOWN = ""  # The module of an operator that no module called, or whose module is not in the trace


class _Node(NamedTuple):
    """A node of the graph that autograd runs, and what its operators inherit."""

    start: int
    module: int
    is_elsewhere: bool


class Origins:
    """Module, category and caller of each operator of a trace.

    An operator's module is the innermost around it, by `module: NAME` annotations, else by torch's
    own spans of modules, whose names are joined: `Sequential_0.Conv2d_1`. An operator of the
    backward pass has the module of the forward operator that made its node: that of the same
    sequence number, and of several the last to begin. Nodes that store gradients have no number;
    they get the module of the node before them.
    """

    def __init__(self, trace: Trace, *, main_thread: int) -> None:
        self.trace, self.main = trace, main_thread
        zeros = bytes(8 * len(trace.operators))
        self.module = array("q", zeros)
        """A place in `module_names`."""
        self.category = array("q", zeros)
        """A place in `CATEGORIES`."""
        self.around = array("q", zeros)
        """The operator that called it, or -1."""
        self._places = {UNKNOWN: 0}
        self._categories = [CATEGORIES.index(find_category(name)) for name in trace.operators.names]
        self._made_by: dict[tuple[int, int], int] = {}
        """The forward operator by thread and sequence number."""
        self._elsewhere: set[tuple[int, int]] = set()
        """Nodes whose forward convolution was not oneDNN's."""
        marks = [
            mark._replace(text=mark.text.removeprefix(MODULE_MARK))
            for mark in trace.annotations
            if mark.text.startswith(MODULE_MARK)
        ]
        modules = marks or list(paths(trace.modules))
        # The main thread first, since forward comes before backward.
        for thread in sorted(trace.by_thread, key=lambda thread: thread != main_thread):
            in_thread = [module for module in modules if module.thread == thread]
            self._follow(trace.by_thread[thread], in_thread)

    @property
    def module_names(self) -> list[str]:
        """The modules that operators have; the first is that of operators without one."""
        return list(self._places)

    def _follow(self, ordered: Sequence[int], modules: Sequence[Annotation]) -> None:
        """Walk through the operators and modules of a thread, in order of time."""
        spans = self.trace.operators
        nodes: dict[int, _Node] = {}
        last: _Node | None = None
        waiting, around = iter(modules), list[Annotation]()
        coming = next(waiting, None)
        for span, parent in parents(spans, ordered):
            start, name, sequence = spans.start[span], spans.span_name(span), spans.sequence[span]
            while coming and coming.start <= start:
                around.append(coming)
                coming = next(waiting, None)
            while around and around[-1].end <= start:
                around.pop()
            self.around[span] = parent
            node = nodes.get(parent)
            if name.startswith(EVALUATE):
                node = last = self._node(span, last)
            if node:
                nodes[span] = node
            # A module inside of a node runs forward again, as with checkpointed activations: it
            # counts before the module of the node.
            if around and (node is None or around[-1].start >= node.start):
                module = self._places.setdefault(around[-1].text, len(self._places))
            else:
                module = node.module if node else 0
            self.module[span] = module
            self.category[span] = self._categories[spans.name[span]]
            # The operator calls the library of its forward convolution, oneDNN or another.
            if name == CONVOLUTION_BACKWARD and node and node.is_elsewhere:
                self.category[span] = CATEGORIES.index(Category.OTHER)
            elif ELSEWHERE.match(name):
                caller = span
                # The sequence number may be that of any caller: convolution, conv2d, or the kernel.
                while caller >= 0:
                    self._elsewhere.add((spans.thread[caller], spans.sequence[caller]))
                    caller = self.around[caller]
            if sequence != NO_SEQUENCE and not spans.is_backward[span]:
                self._made_by[spans.thread[span], sequence] = span

    def _node(self, span: int, before: _Node | None) -> _Node:
        spans = self.trace.operators
        thread, start, sequence = spans.thread[span], spans.start[span], spans.sequence[span]
        if sequence == NO_SEQUENCE:
            is_store = spans.span_name(span) == ACCUMULATE
            return _Node(start, before.module if before and is_store else 0, is_elsewhere=False)
        # Without a flow in the trace the forward operator is taken to be the main thread's.
        key = self.trace.forward_threads.get((thread, start), self.main), sequence
        maker = self._made_by.get(key)
        module = 0 if maker is None else self.module[maker]
        return _Node(start, module, is_elsewhere=key in self._elsewhere)


def paths(modules: Iterable[Annotation]) -> Iterator[Annotation]:
    """Yield modules by begin, each name after the names of those around it."""
    around: dict[int, list[Annotation]] = {}
    for module in modules:
        outer = around.setdefault(module.thread, [])
        while outer and outer[-1].end <= module.start:
            outer.pop()
        path = f"{outer[-1].text}.{module.text}" if outer else module.text
        outer.append(module._replace(text=path))
        yield outer[-1]


SHORT_NS = 100_000
"""Spans below 0.1 ms are short: calling an operator takes some 0.01 to 0.05 ms of them."""


class Piece(IntEnum):
    """The kinds of pieces into which operator time falls.

    A piece is a span that works, with all that it calls, or the time between two calls of a span
    that mostly calls others.
    """

    CALLING = 0  # Between calls, less than 0.1 ms
    SHORT = 1  # Work of less than 0.1 ms
    LONG = 2  # Either, of 0.1 ms or longer


def working_spans(
    spans: Spans, by_thread: ByThread, *, around: Sequence[int]
) -> tuple["array[int]", bytes]:
    """Return the places of the spans that work, and the kind of piece that each span is in.

    A span works if its self time is at least half of its duration, and it is not inside of another
    working span: a convolution works, and the allocations inside are parts of its work;
    `aten::conv2d` around it only calls. All spans that only call are `CALLING`, however long.
    `around` is the caller of each span, or -1.
    """
    self_ns = array("q", bytes(8 * len(spans)))
    pieces = bytearray(len(spans))
    works = array("q")
    for ordered in by_thread.values():
        for start, end, span in stretches(spans, ordered):
            self_ns[span] += end - start
        for span in ordered:
            parent = around[span]
            if parent >= 0 and pieces[parent] != Piece.CALLING:
                pieces[span] = pieces[parent]
                continue
            duration = spans.end[span] - spans.start[span]
            if 2 * self_ns[span] >= duration:
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
    rf"""_(Winograd|Tile)?Convolution(Backward)?$ |        # of retinanet/engine: convolutions,
    _BatchNorm(Backward)?$ |                              # norms that train,
    _AddRelu$ | _BranchesBackward$ |                      # sums and masks
    {OUR_STEP} |                                          # its optimizers
    retinanet:: | GeneratedBackwardFor_retinanet_         # retinanet/loss/focal_kernel.py
    """,
    re.VERBOSE,
)
COMMUNICATION = re.compile(r"c10d::|gloo:|mpi:|ccl:|oneccl|nccl:|ucc:|record_param_comms")
ELSEWHERE = re.compile(
    r"aten::(_?slow_conv|slow_conv_dilated|thnn_conv|_conv_depthwise|_nnpack|xnnpack|cudnn_conv)"
)
"""Convolutions of other libraries: in float64, or with oneDNN switched off."""


class Category(StrEnum):
    """Categories of operators, in the order of tables and charts."""

    ONEDNN = "oneDNN"
    OURS = "our kernels"
    PRODUCTS = "matrix products"
    COMMUNICATION = "communication"
    OTHER = "other operators"


CATEGORIES = tuple(Category)
NAMES = {
    Category.ONEDNN: ONEDNN,
    Category.OURS: OURS,
    Category.PRODUCTS: PRODUCTS,
    Category.COMMUNICATION: COMMUNICATION,
}
"""The first that matches counts."""


def find_category(name: str) -> Category:
    """Return the category of an operator's own time, by its name alone."""
    matching = (category for category, pattern in NAMES.items() if pattern.match(name))
    return next(matching, Category.OTHER)


STEP_MARKS = (re.compile(r"step (\d+)"), re.compile(r"ProfilerStep#(\d+)"))
"""Ours, and those of `torch.profiler.schedule`; the first pattern that a trace has counts."""
PHASE_MARK = "phase: "
WHOLE = None  # The number of the one step of a trace in which none are marked


class Cell(NamedTuple):
    """A piece of a step that lies in one phase. [ns]"""

    start: int
    end: int
    step: int | None
    phase: str


@dataclass(frozen=True)
class Steps:
    """The analyzed part of a trace."""

    cells: tuple[Cell, ...]  # By time; together they cover the steps, and nothing twice
    main_thread: int  # The thread that takes the steps
    training_threads: tuple[int, ...]  # The main one, then those that run autograd's backward pass
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
        return sorted(phases, key=lambda phase: phase == BETWEEN)

    @property
    def durations(self) -> dict[int | None, int]:
        """Wall time of each step. [ns]"""
        durations: Counter[int | None] = Counter()
        for cell in self.cells:
            durations[cell.step] += cell.end - cell.start
        return dict(durations)


def find_steps(trace: Trace, chosen: Sequence[int] | None = None) -> Steps:
    """Return the steps and phases marked by annotations, or the complete trace.

    If no phases are marked: backward is from the first node that autograd runs to the last
    before another operator; optimizer and data are torch's own annotations; forward is the rest.
    `chosen` are numbers of steps; None: all that are marked.

    Raises:
        InputError: The trace has no step of such a number, or its operators take no time.
    """
    operators, marks = trace.operators, list[tuple[int, Annotation]]()
    for pattern in STEP_MARKS:
        marks = marks or [
            (int(match[1]), mark)
            for mark in trace.annotations
            if (match := pattern.fullmatch(mark.text))
        ]
    # Without marks: the thread with most forward operators, or with most if none is known as such.
    calls = zip(operators.thread, operators.sequence, operators.is_backward, strict=True)
    forward = (
        thread for thread, sequence, is_backward in calls if sequence >= 0 and not is_backward
    )
    if marks:
        main = marks[0][1].thread
    else:
        main = (Counter(forward) or Counter(operators.thread)).most_common(1)[0][0]
    nodes = {place for place, name in enumerate(operators.names) if name.startswith(EVALUATE)}
    backward = {
        thread
        for thread, name in zip(operators.thread, operators.name, strict=True)
        if name in nodes and thread != main
    }
    training = (main, *sorted(backward))
    by_number = {number: (mark.start, mark.end) for number, mark in marks if mark.thread == main}
    marked = [
        (mark.start, mark.end, mark.text.removeprefix(PHASE_MARK))
        for mark in trace.annotations
        if mark.thread == main and mark.text.startswith(PHASE_MARK)
    ]
    windows = find_windows(trace, by_number, training, chosen)
    intervals = marked or sorted(unmarked_phases(trace, main, training))
    cells = tuple(cut(windows, intervals, BETWEEN if marked else "forward"))
    if not cells:
        raise InputError(f"{trace.file}: its operators have no duration")
    return Steps(
        cells=cells,
        main_thread=main,
        training_threads=training,
        are_marked=bool(marks),
        phases_are_marked=bool(marked),
    )


def find_windows(
    trace: Trace,
    marked: dict[int, tuple[int, int]],
    training: Sequence[int],
    chosen: Sequence[int] | None,
) -> dict[int | None, tuple[int, int]]:
    """Return begin and end of each analyzed step, by number."""
    operators = trace.operators
    if chosen is not None and not marked:
        raise InputError(f"--step: {trace.file} has no marks of steps; remove --step")
    for number in chosen or ():
        if number not in marked:
            have = ", ".join(map(str, sorted(marked)))
            raise InputError(f"--step: {trace.file} has no step {number}; it has {have}")
    if not marked:
        places = [span for span, thread in enumerate(operators.thread) if thread in training]
        # The trace has no marks, so that it begins and ends with its operators.
        begin = min(operators.start[span] for span in places)
        return {WHOLE: (begin, max(operators.end[span] for span in places))}
    if not chosen and trace.is_cut_off:  # Omit steps that are incomplete, but keep at least one
        last = max(operators.start)
        chosen = [number for number, (_, end) in marked.items() if end <= last] or [min(marked)]
    return {number: marked[number] for number in chosen or marked}


OF_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
OF_DATA = "enumerate(DataLoader)#"


def unmarked_phases(
    trace: Trace, main: int, training: Sequence[int]
) -> Iterator[tuple[int, int, str]]:
    """Yield begin, end and name of backward, optimizer and data from torch's annotations."""
    for mark in trace.annotations:
        if mark.thread == main and mark.text.startswith((*OF_OPTIMIZER, OF_DATA)):
            phase = "data" if mark.text.startswith(OF_DATA) else "optimizer"
            yield mark.start, mark.end, phase
    operators = trace.operators
    outermost = sorted(
        (operators.start[span], span)
        for thread in training
        for span, parent in parents(operators, trace.by_thread.get(thread, ()))
        if parent < 0
    )
    in_turns = groupby(
        outermost, key=lambda item: operators.span_name(item[1]).startswith(EVALUATE)
    )
    for is_backward, group in in_turns:
        if is_backward:
            nodes = list(group)
            yield nodes[0][0], max(operators.end[span] for _, span in nodes), "backward"


def cut(
    windows: dict[int | None, tuple[int, int]], phases: Sequence[tuple[int, int, str]], between: str
) -> Iterator[Cell]:
    """Divide the steps into phases; of overlapping ones the last to begin is used.

    `phases` are begin, end and name; `between` is the name of time in none of them.
    """
    # As spans, so that `stretches` finds the innermost phase at each moment.
    spans = Spans()
    for begin, end, name in phases:
        spans.add(Annotation(begin, end, 0, name))
    pieces = list(stretches(spans, spans.by_thread().get(0, ())))
    for number, (begin, end) in sorted(windows.items(), key=lambda item: item[1]):
        now, cells = begin, list[Cell]()
        first = bisect_right(pieces, begin, key=lambda piece: piece.end)
        for start, end_of_piece, span in pieces[first:]:
            if start >= end:
                break
            if start > now:
                cells.append(Cell(now, start, number, between))
            now = min(end_of_piece, end)
            cells.append(Cell(max(start, begin), now, number, spans.span_name(span)))
        if now < end:
            cells.append(Cell(now, end, number, between))
        # Phases of one name may touch, such as torch's Optimizer.zero_grad and Optimizer.step.
        for _, neighbours in groupby(cells, key=lambda cell: cell.phase):
            merged = list(neighbours)
            yield merged[0]._replace(end=merged[-1].end)
