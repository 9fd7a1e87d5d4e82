"""A trace once it is read: operators, annotations, and where backward operators come from.

TODO-DOC Spans of a trace as columns: 60 bytes each, where a dict takes a thousand.

TODO-DOC The bytes that a training counted for its trace: what the operators of a step read and write.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.errors import InputError, printable
from profiling.trace.events import TraceEvents

OPERATOR = ("cpu_op", "Operator")
"""Categories of operators; the second is that of torch 1."""
MODULE = "nn.Module: "
"""How names of modules begin in traces `with_stack`."""
OPTIMIZER_STEP = "Optimizer.step#"
OUR_OPTIMIZERS = ("OnePassAdam", "Lamb")
"""Optimizers of retinanet/engine whose kernel no operator of the trace stands for."""


class Annotation(NamedTuple):
    """A span that is no operator: of `record_function`, of an optimizer, of a module. [ns]"""

    start: int
    end: int
    thread: int
    text: str


NO_SEQUENCE = -1
ByThread = dict[int, "array[int]"]
"""Spans by thread."""


class Spans:
    """Calls of operators, in the trace's order. Times in ns."""

    def __init__(self) -> None:
        """None yet."""
        self.names: list[str] = []
        """Each once; `name` holds places in it."""
        self.name = array("i")
        self.thread = array("i")
        self.start = array("q")
        self.end = array("q")
        self.sequence = array("q")
        """Autograd's number of the graph node that a forward operator makes, or that a backward
        operator runs; `NO_SEQUENCE` where there is none."""
        self.is_backward = array("b")
        """Whether the sequence number is that of a node being run."""
        self._place_of_name: dict[str, int] = {}

    def __len__(self) -> int:
        """How many calls."""
        return len(self.start)

    def add(
        self,
        name: str,
        *,
        thread: int,
        start: int,
        end: int,
        sequence: int = NO_SEQUENCE,
        is_backward: bool = False,
    ) -> None:
        """Append a call."""
        place = self._place_of_name.setdefault(name, len(self.names))
        if place == len(self.names):
            self.names.append(name)
        self.name.append(place)
        self.thread.append(thread)
        self.start.append(start)
        self.end.append(end)
        self.sequence.append(sequence)
        self.is_backward.append(is_backward)

    def name_of(self, span: int) -> str:
        """The operator."""
        return self.names[self.name[span]]

    def by_thread(self) -> ByThread:
        """The spans of each thread by begin; of two that begin together the longer first."""
        found: dict[int, array[int]] = {}
        for span, thread in enumerate(self.thread):
            found.setdefault(thread, array("q")).append(span)
        start, end = self.start, self.end
        return {
            thread: array("q", sorted(spans, key=lambda span: (start[span], -end[span])))
            for thread, spans in found.items()
        }


class MovedRow(NamedTuple):
    """All calls of an operator in one phase of the step."""

    phase: str
    operator: str
    calls: int
    read: int
    written: int

    @property
    def total(self) -> int:
        """Return bytes read and written."""
        return self.read + self.written


class BytesMoved(NamedTuple):
    """One step's traffic, see `profiling.capture.byte_counter` for what counts."""

    step: int
    """The step that was counted: the one before the first that was traced."""
    rows: Sequence[MovedRow]
    """The largest first."""

    @property
    def total(self) -> int:
        """Return bytes read and written in the step."""
        return sum(row.total for row in self.rows)

    def by_phase(self) -> dict[str, tuple[int, int]]:
        """Return bytes read and written by phase, in the order of the step."""
        found: dict[str, tuple[int, int]] = {}
        for phase in ("data", "forward", "loss", "backward", "optimizer"):
            found[phase] = (0, 0)
        for row in self.rows:
            read, written = found.get(row.phase or BETWEEN, (0, 0))
            found[row.phase or BETWEEN] = (read + row.read, written + row.written)
        return {phase: sums for phase, sums in found.items() if sum(sums)}


@dataclass
class Trace:
    """What this package needs of a trace. Times in ns, on the trace's own clock."""

    file: Path
    operators: Spans = field(default_factory=Spans)
    annotations: list[Annotation] = field(default_factory=list)
    modules: list[Annotation] = field(default_factory=list)
    """Of `nn.Module`s, as torch names them: `Conv2d_0`."""
    threads: list[str] = field(default_factory=list)
    """`process/thread`; all else holds places in this list."""
    forward_threads: dict[tuple[int, int], int] = field(default_factory=dict)
    """From thread and begin of a backward operator to the thread that ran its forward."""
    gpu_events: int = 0
    """Kernels and copies of other devices, which are left out."""
    is_cut_off: bool = False
    bytes_moved: BytesMoved | None = None
    """What the operators of a step read and write, where the training counted that."""

    @cached_property
    def by_thread(self) -> ByThread:
        """The operators of each thread, see `Spans.by_thread`; for when all are read."""
        return self.operators.by_thread()


def read_trace(file: Path, advance: Callable[[int, str], None] | None = None) -> Trace:
    """Read what `export_chrome_trace` wrote, plain or in gzip.

    Args:
        file: The trace.
        advance: Called with the number of bytes read so far.

    Raises:
        InputError: It is no trace, or one without CPU operators.
    """
    events = TraceEvents(file, advance)
    reader = _Reader(Trace(file))
    for event in events:
        try:
            reader.take(event)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{file}: not an event of torch.profiler: {str(event)[:120]}"
            ) from error
    trace = reader.finish()
    trace.is_cut_off = events.is_cut_off
    trace.bytes_moved = bytes_moved_of(events.fields.get(KEY), file)
    if not len(trace.operators):
        raise InputError(
            f"{file}: has no CPU operators; profile with activities=[ProfilerActivity.CPU]"
        )
    return trace


class _Reader:
    """Takes events one by one."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._threads: dict[tuple[Any, Any], int] = {}
        self._forward_ends: dict[Any, int] = {}
        self._backward_ends: dict[Any, tuple[int, int]] = {}

    def take(self, event: dict[str, Any]) -> None:
        category, kind = event.get("cat"), event.get("ph")
        if kind == "X":
            if category in OPERATOR:
                self._take_operator(event)
            elif category == "user_annotation":
                self._take_annotation(event)
            elif category == "python_function" and event["name"].startswith(MODULE):
                self._trace.modules.append(self._annotation(event, event["name"][len(MODULE) :]))
            elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
                self._trace.gpu_events += 1
        elif category == "fwdbwd" and kind == "s":
            self._forward_ends[event["id"]] = self._thread(event)
        elif category == "fwdbwd" and kind == "f":
            self._backward_ends[event["id"]] = self._thread(event), nanoseconds(event["ts"])

    def finish(self) -> Trace:
        trace = self._trace
        trace.threads = [f"{process}/{thread}" for process, thread in self._threads]
        for flow, place in self._backward_ends.items():
            if flow in self._forward_ends:
                trace.forward_threads[place] = self._forward_ends[flow]
        trace.annotations.sort()
        trace.modules.sort()
        return trace

    def _take_operator(self, event: dict[str, Any]) -> None:
        arguments = event.get("args") or {}
        start = nanoseconds(event["ts"])
        self._trace.operators.add(
            str(event["name"]),
            thread=self._thread(event),
            start=start,
            end=start + max(0, nanoseconds(event["dur"])),
            sequence=int(arguments.get("Sequence number", NO_SEQUENCE)),
            is_backward=int(arguments.get("Fwd thread id", 0)) != 0,
        )

    def _take_annotation(self, event: dict[str, Any]) -> None:
        annotation = self._annotation(event, str(event["name"]))
        self._trace.annotations.append(annotation)
        optimizer = annotation.text.removeprefix(OPTIMIZER_STEP)
        if optimizer.removesuffix(".step") in OUR_OPTIMIZERS:
            self._trace.operators.add(
                optimizer, thread=annotation.thread, start=annotation.start, end=annotation.end
            )

    def _annotation(self, event: dict[str, Any], text: str) -> Annotation:
        start = nanoseconds(event["ts"])
        end = start + max(0, nanoseconds(event["dur"]))
        return Annotation(start, end, self._thread(event), text)

    def _thread(self, event: dict[str, Any]) -> int:
        key = event.get("pid"), event.get("tid")
        return self._threads.setdefault(key, len(self._threads))


def nanoseconds(microseconds: str | int) -> int:
    """Exactly, from digits: `4446000509720.008` has more of them than a float holds.

    Raises:
        ValueError: It is no number.
    """
    if isinstance(microseconds, int):
        return microseconds * 1000
    whole, _, fraction = microseconds.partition(".")
    if not whole.isdigit() or len(fraction) > 3 or not (fraction or "0").isdigit():
        return round(float(microseconds) * 1000)
    return int(whole) * 1000 + int(fraction.ljust(3, "0"))


class Stretch(NamedTuple):
    """A piece of time in which a span is the innermost on its thread."""

    start: int
    end: int
    span: int
    """Its place in the columns."""


def parents(spans: Spans, ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each span of a thread, and the span around it, or -1.

    `ordered`: as `Spans.by_thread` gives them.
    """
    end = spans.end
    around: list[int] = []
    for span in ordered:
        while around and end[around[-1]] <= spans.start[span]:
            around.pop()
        yield span, around[-1] if around else -1
        around.append(span)


def stretches(spans: Spans, ordered: Sequence[int]) -> Iterator[Stretch]:
    """Cut a thread's time up by the innermost span: the one that began last of those not over.

    Over a span's stretches the time adds up to its duration minus its children's.
    `ordered`: as `Spans.by_thread` gives them. Times in which no span runs are left out.
    """
    start, end = spans.start, spans.end
    around: list[int] = []
    now = 0
    for span in ordered:
        begin = start[span]
        while around and end[around[-1]] <= begin:
            over = around.pop()
            if end[over] > now:
                yield Stretch(now, end[over], over)
                now = end[over]
        if around and begin > now:
            yield Stretch(now, begin, around[-1])
        now = begin
        around.append(span)
    while around:
        over = around.pop()
        if end[over] > now:
            yield Stretch(now, end[over], over)
            now = end[over]


def overlay(over: Iterator[Stretch], under: Iterator[Stretch]) -> Iterator[Stretch]:
    """All of `over`, and of `under` what lies where `over` has nothing; by time, as both are."""
    rest = next(under, None)
    free_from = 0
    for stretch in over:
        while rest is not None and rest.start < stretch.start:
            begin, end = max(rest.start, free_from), min(rest.end, stretch.start)
            if begin < end:
                yield Stretch(begin, end, rest.span)
            if rest.end > stretch.start:
                break
            rest = next(under, None)
        yield stretch
        free_from = stretch.end
    while rest is not None:
        if rest.end > free_from:
            yield Stretch(max(rest.start, free_from), rest.end, rest.span)
        rest = next(under, None)


KEY = "bytes_moved"
"""Of the trace's file, beside its events."""

BETWEEN = "between phases"


def bytes_moved_of(content: Any, file: Path) -> BytesMoved | None:
    """Return what a trace's file holds under `KEY`; None where it holds nothing.

    Raises:
        InputError: It is not what a training writes there.
    """
    if content is None:
        return None
    try:
        rows = [
            MovedRow(str(phase), str(operator), int(calls), int(read), int(written))
            for phase, operator, calls, read, written in content["operators"]
        ]
        return BytesMoved(int(content["step"]), sorted(rows, key=lambda row: -row.total))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: {KEY} is not what profile.trace writes") from error


def print_bytes_moved(console: Console, moved: BytesMoved, *, top: int) -> None:
    """Print the traffic of the step by phase, and the operators that move most."""
    title = f"GB that the operators of step {moved.step} read and write"
    table = Table("phase", title=title, title_justify="left")
    for heading in ("read", "written", "both"):
        table.add_column(heading, justify="right")
    for phase, (read, written) in moved.by_phase().items():
        table.add_row(Text(printable(phase)), *map(gigabytes, (read, written, read + written)))
    table.add_section()
    sums = (sum(row.read for row in moved.rows), sum(row.written for row in moved.rows))
    table.add_row("all", *map(gigabytes, (*sums, sum(sums))))
    console.print(table)
    shown = moved.rows[:top]
    title = f"the {len(shown)} operators of {len(moved.rows)} that move most"
    table = Table(title=title, title_justify="left")
    table.add_column("operator", overflow="fold")
    table.add_column("phase")
    for heading in ("calls", "GB read", "GB written", "share"):
        table.add_column(heading, justify="right")
    for row in shown:
        share = f"{row.total / (moved.total or 1):.1%}"
        cells = (f"{row.calls:,}", gigabytes(row.read), gigabytes(row.written), share)
        table.add_row(Text(printable(row.operator)), Text(printable(row.phase)), *cells)
    console.print(table)


def gigabytes(value: float) -> str:
    """Return bytes as 10⁹ of them."""
    return f"{value / 1e9:.3f}"


def bytes_json(moved: BytesMoved) -> dict[str, Any]:
    """Return everything for programs."""
    return {
        "step": moved.step,
        "bytes": moved.total,
        "phases": {phase: sum(sums) for phase, sums in moved.by_phase().items()},
        "operators": [row._asdict() for row in moved.rows],
    }
