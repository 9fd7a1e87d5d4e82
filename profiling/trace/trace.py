"""A trace once it is read: operators, annotations, and where backward operators come from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from profiling.trace.bytes_moved import KEY, BytesMoved, bytes_moved_of
from profiling.trace.spans import NO_SEQUENCE, ByThread, Spans
from profiling.trace.trace_events import TraceEvents
from retinanet.errors import InputError

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
