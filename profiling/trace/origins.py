"""Where each operator comes from: the module that called it, and what its own time is."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from profiling.trace.categories import (
    CATEGORIES,
    CONVOLUTION_BACKWARD,
    ELSEWHERE,
    Category,
    category_of,
)
from profiling.trace.phases import EVALUATE
from profiling.trace.spans import NO_SEQUENCE, parents
from profiling.trace.trace import Annotation, Trace

MODULE_MARK = "module: "
ACCUMULATE = f"{EVALUATE}torch::autograd::AccumulateGrad"
UNKNOWN = ""
"""The module of an operator that none called, or that is not told."""


@dataclass
class Origins:
    """A row for each operator of a trace."""

    module: "array[int]"
    """A place in `module_names`."""
    category: "array[int]"
    """A place in `CATEGORIES`."""
    around: "array[int]"
    """The operator that called it, or -1."""
    module_names: list[str]


class _Node:
    """A node of the graph that autograd runs: what its operators inherit."""

    def __init__(self, start: int, module: int, *, is_elsewhere: bool) -> None:
        self.start = start
        self.module = module
        self.is_elsewhere = is_elsewhere


def find_origins(trace: Trace, *, main_thread: int) -> Origins:
    """Follow annotations forward, and autograd's sequence numbers back.

    An operator's module is the innermost around it, by `module: NAME` annotations, else by torch's
    own spans of modules, whose names are joined: `Sequential_0.Conv2d_1`. An operator of the
    backward pass has the module of the forward operator that made its node: that of the same
    sequence number, and of several the last to begin. Nodes that store gradients have no number;
    they get the module of the node before them.
    """
    return _Follower(trace, main_thread).follow()


class _Follower:
    """Goes through the threads, the main one first, since forward comes before backward."""

    def __init__(self, trace: Trace, main_thread: int) -> None:
        self._trace = trace
        self._main = main_thread
        zeros = bytes(8 * len(trace.operators))
        self._found = Origins(array("q", zeros), array("q", zeros), array("q", zeros), [UNKNOWN])
        self._places = {UNKNOWN: 0}
        self._categories = [CATEGORIES.index(category_of(one)) for one in trace.operators.names]
        self._made_by: dict[tuple[int, int], int] = {}
        """From thread and sequence number to the forward operator."""
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
        return self._found

    def _follow_thread(self, ordered: Sequence[int], modules: Sequence[Annotation]) -> None:
        spans, found = self._trace.operators, self._found
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
            found.around[span] = parent
            node = nodes.get(parent)
            if name.startswith(EVALUATE):
                node = last = self._node(span, last)
            if node:
                nodes[span] = node
            is_inside = bool(around) and (node is None or around[-1].start >= node.start)
            module = self._place(around[-1].text) if is_inside else node.module if node else 0
            found.module[span] = module
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
        module = 0 if maker is None else self._found.module[maker]
        return _Node(start, module, is_elsewhere=key in self._elsewhere)

    def _forward_thread(self, span: int) -> int:
        spans = self._trace.operators
        place = spans.thread[span], spans.start[span]
        return self._trace.forward_threads.get(place, self._main)

    def _note_category(self, span: int, name: str, node: _Node | None) -> None:
        spans, found = self._trace.operators, self._found
        found.category[span] = self._categories[spans.name[span]]
        if name == CONVOLUTION_BACKWARD and node and node.is_elsewhere:
            found.category[span] = CATEGORIES.index(Category.OTHER)
        elif ELSEWHERE.match(name):
            one = span
            while one >= 0:
                self._elsewhere.add((spans.thread[one], spans.sequence[one]))
                one = found.around[one]

    def _place(self, module: str) -> int:
        place = self._places.setdefault(module, len(self._found.module_names))
        if place == len(self._found.module_names):
            self._found.module_names.append(module)
        return place


def paths(modules: Iterable[Annotation]) -> Iterator[Annotation]:
    """Modules by begin, each with the names of those around it before its own."""
    around: dict[int, list[Annotation]] = {}
    for one in modules:
        outer = around.setdefault(one.thread, [])
        while outer and outer[-1].end <= one.start:
            outer.pop()
        path = f"{outer[-1].text}.{one.text}" if outer else one.text
        outer.append(one._replace(text=path))
        yield outer[-1]
