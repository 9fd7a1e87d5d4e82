"""A Chrome trace of torch.profiler, read into columns: operators, annotations, bytes moved.

Events are decoded one at a time, so that a file of any size needs little memory; spans are columns,
60 bytes each, where a dict takes a thousand. A file that was cut off gives what it holds. Below
are the two walks over a thread's spans that all sums are made of: who calls whom (`parents`), and
which span is the innermost when (`stretches`).
"""

import codecs
import gzip
import io
import json
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rich.console import Console

from common.console import progress_in_bytes
from common.errors import InputError
from common.files import regular_descriptor
from common.numbers import require_moderate
from profiling.onednn_log.parse import PHASES

OPERATOR = ("cpu_op", "Operator")  # Categories of operators; the second is that of torch 1
MODULE = "nn.Module: "  # How names of modules begin in traces `with_stack`
OPTIMIZER_STEP = "Optimizer.step#"
OUR_STEP = r"(Lamb|FusedAdamW?|FusedSGD)\.step$"
"""The steps of retinanet/engine/optimizers.py, whose C++ is no operator of torch."""


class Annotation(NamedTuple):
    """A span of `record_function`, of an optimizer, of a module; or an operator's call. [ns]"""

    start: int
    end: int
    thread: int
    text: str


NO_SEQUENCE = -1
ByThread = dict[int, "array[int]"]  # The spans of each thread: their places in the columns


class Spans:
    """Calls of operators, in the trace's order. Times in ns."""

    def __init__(self) -> None:
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
        return len(self.start)

    def add(
        self, call: Annotation, sequence: int = NO_SEQUENCE, *, is_backward: bool = False
    ) -> None:
        """Append a call of the operator whose name is the text."""
        place = self._place_of_name.setdefault(call.text, len(self.names))
        if place == len(self.names):
            self.names.append(call.text)
        self.name.append(place)
        self.thread.append(call.thread)
        self.start.append(call.start)
        self.end.append(call.end)
        self.sequence.append(sequence)
        self.is_backward.append(is_backward)

    def span_name(self, span: int) -> str:
        """Return the operator's name."""
        return self.names[self.name[span]]

    def by_thread(self) -> ByThread:
        """Return the spans of each thread by begin; of two that begin together the longer first."""
        threads: dict[int, array[int]] = {}
        for span, thread in enumerate(self.thread):
            threads.setdefault(thread, array("q")).append(span)
        start, end = self.start, self.end
        return {
            thread: array("q", sorted(spans, key=lambda span: (start[span], -end[span])))
            for thread, spans in threads.items()
        }


KEY = "bytes_moved"  # The field of a trace's file, beside its events
BETWEEN = "between phases"  # The name of time and bytes in no phase


class MovedRow(NamedTuple):
    """All calls of an operator in one phase of the step. [bytes]"""

    phase: str
    operator: str
    calls: int
    read: int
    written: int

    @property
    def total(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


class BytesMoved(NamedTuple):
    """One step's traffic, see `profiling.capture.byte_counter` for what counts."""

    step: int  # The step that was counted: the one before the first that was traced
    rows: Sequence[MovedRow]  # The largest first

    @property
    def total(self) -> int:
        """Bytes read and written in the step."""
        return sum(row.total for row in self.rows)

    def by_phase(self) -> dict[str, tuple[int, int]]:
        """Return bytes read and written by phase, in the order of the step."""
        sums = dict.fromkeys(PHASES, (0, 0))
        for row in self.rows:
            read, written = sums.get(row.phase or BETWEEN, (0, 0))
            sums[row.phase or BETWEEN] = (read + row.read, written + row.written)
        return {phase: both for phase, both in sums.items() if sum(both)}


def parse_bytes_moved(content: Any, file: Path) -> BytesMoved | None:
    """Return the value of `KEY` in a trace; None if there is none."""
    if content is None:
        return None
    require_moderate(content, f"{file}: {KEY}")
    try:
        rows = [
            MovedRow(str(phase), str(operator), int(calls), int(read), int(written))
            for phase, operator, calls, read, written in content["operators"]
        ]
        return BytesMoved(int(content["step"]), sorted(rows, key=lambda row: -row.total))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: {KEY}: not in the format of profile.trace") from error


@dataclass
class Trace:
    """A trace, as far as this package needs it. Times in ns, on the trace's clock."""

    file: Path
    operators: Spans = field(default_factory=Spans)
    annotations: list[Annotation] = field(default_factory=list)
    modules: list[Annotation] = field(default_factory=list)
    """Calls of `nn.Module`s, with torch's names: `Conv2d_0`."""
    forward_threads: dict[tuple[int, int], int] = field(default_factory=dict)
    """The thread that ran the forward operator, by thread and begin of the backward one."""
    gpu_events: int = 0  # Kernels and copies of other devices, which are left out
    is_cut_off: bool = False
    bytes_moved: BytesMoved | None = None

    @cached_property
    def by_thread(self) -> ByThread:
        """The operators of each thread, see `Spans.by_thread`; use it after reading all events."""
        return self.operators.by_thread()


def read_trace(file: Path, advance: Callable[[int, str], None] | None = None) -> Trace:
    """Read a trace of `export_chrome_trace`, plain or in gzip.

    `advance` is called with the number of bytes read so far.

    Raises:
        InputError: The file is not a trace, or has no CPU operators.
    """
    events = TraceEvents(file, advance)
    trace = Trace(file)
    reader = _Reader(trace)
    for event in events:
        try:
            reader.take(event)
        except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise InputError(
                f"{file}: not an event of torch.profiler: {str(event)[:120]}"
            ) from error
    for flow, place in reader.backward_ends.items():
        if flow in reader.forward_ends:
            trace.forward_threads[place] = reader.forward_ends[flow]
    trace.annotations.sort()
    trace.modules.sort()
    trace.is_cut_off = events.is_cut_off
    trace.bytes_moved = parse_bytes_moved(events.fields.get(KEY), file)
    if not len(trace.operators):
        raise InputError(
            f"{file}: has no CPU operators; profile with activities=[ProfilerActivity.CPU]"
        )
    return trace


def read_with_progress(file: Path, console: Console) -> Trace:
    """Read a trace as `read_trace` does, and show the progress."""
    # A pipe has no size; a file that is missing is reported by the reader.
    size = file.stat().st_size if file.is_file() else 0
    with progress_in_bytes(console, f"reading {file.name}", total=size) as advance:
        return read_trace(file, advance)


class _Reader:
    """Fills a trace from events; forward and backward operators are joined by flows' numbers."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.threads: dict[tuple[Any, Any], int] = {}
        self.forward_ends: dict[Any, int] = {}
        self.backward_ends: dict[Any, tuple[int, int]] = {}

    def take(self, event: dict[str, Any]) -> None:
        category, kind, trace = event.get("cat"), event.get("ph"), self.trace
        if kind == "X":
            if category in OPERATOR:
                arguments = event.get("args") or {}
                sequence = int(arguments.get("Sequence number", NO_SEQUENCE))
                # 0 for operators of the forward pass; operators that make no node lack it.
                is_backward = int(arguments.get("Fwd thread id", 0)) != 0
                trace.operators.add(self._annotation(event), sequence, is_backward=is_backward)
            elif category == "user_annotation":
                annotation = self._annotation(event)
                trace.annotations.append(annotation)
                step = annotation.text.removeprefix(OPTIMIZER_STEP)
                if step != annotation.text and re.match(OUR_STEP, step):
                    trace.operators.add(annotation._replace(text=step))
            elif category == "python_function" and event["name"].startswith(MODULE):
                module = self._annotation(event)
                trace.modules.append(module._replace(text=module.text.removeprefix(MODULE)))
            elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
                trace.gpu_events += 1
        # A flow begins (s) at a forward operator and ends (f) at the backward one.
        elif category == "fwdbwd" and kind == "s":
            self.forward_ends[event["id"]] = self._thread(event)
        elif category == "fwdbwd" and kind == "f":
            self.backward_ends[event["id"]] = self._thread(event), nanoseconds(event["ts"])

    def _annotation(self, event: dict[str, Any]) -> Annotation:
        start = nanoseconds(event["ts"])
        end = start + max(0, nanoseconds(event["dur"]))
        return Annotation(start, end, self._thread(event), str(event["name"]))

    def _thread(self, event: dict[str, Any]) -> int:
        key = event.get("pid"), event.get("tid")
        return self.threads.setdefault(key, len(self.threads))


LATEST = 1 << 62  # ns, 146 years: a span begins and lasts less, so that its end has 63 bits


def nanoseconds(microseconds: str | int) -> int:
    """Return microseconds as ns, exactly: `4446000509720.008` has more digits than a float.

    Raises:
        TypeError, ValueError, ArithmeticError: It is no number, or no time: larger than `LATEST`.
    """
    if not isinstance(microseconds, (str, int)):  # Decimal takes lists of digits
        raise TypeError(f"{str(microseconds)[:40]} is not a time in µs")
    time = Decimal(microseconds) * 1000
    if abs(time) >= LATEST:
        raise ValueError(f"{str(microseconds)[:40]} is not a time in µs")
    return round(time)


class Stretch(NamedTuple):
    """A piece of time in which a span is the innermost on its thread."""

    start: int
    end: int
    span: int  # Its place in the columns


def parents(spans: Spans, ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each span of a thread, ordered by `Spans.by_thread`, and the one around it, or -1."""
    end = spans.end
    around: list[int] = []
    for span in ordered:
        while around and end[around[-1]] <= spans.start[span]:
            around.pop()
        yield span, around[-1] if around else -1
        around.append(span)


def stretches(spans: Spans, ordered: Sequence[int]) -> Iterator[Stretch]:
    """Divide a thread's time by the innermost running span.

    Over a span's stretches the time adds up to its duration minus its children's. Times in which no
    span runs are left out. The spans are in the order of `Spans.by_thread`.
    """
    start, end = spans.start, spans.end
    around: list[int] = []
    now = 0
    for span in chain(ordered, (None,)):  # After the last span, all running ones end
        while around and (span is None or end[around[-1]] <= start[span]):
            # Spans that overlap in part count once: the one that began later has the time.
            over = around.pop()
            if end[over] > now:
                yield Stretch(now, end[over], over)
                now = end[over]
        if span is None:
            return
        if around and start[span] > now:
            yield Stretch(now, start[span], around[-1])
        now = start[span]
        around.append(span)


def overlay(over: Iterator[Stretch], under: Iterator[Stretch]) -> Iterator[Stretch]:
    """Yield `over`, and the parts of `under` that `over` does not cover, in order of time."""
    below = next(under, None)
    free_from = 0
    for stretch in over:
        while below is not None and below.start < stretch.start:
            begin, end = max(below.start, free_from), min(below.end, stretch.start)
            if begin < end:
                yield Stretch(begin, end, below.span)
            # The rest of `below` may continue after this stretch.
            if below.end > stretch.start:
                break
            below = next(under, None)
        yield stretch
        free_from = stretch.end
    while below is not None:
        if below.end > free_from:
            yield Stretch(max(below.start, free_from), below.end, below.span)
        below = next(under, None)


LONGEST_EVENT = 1 << 26  # Characters after which an event that does not end is an error
BLANKS = re.compile(r"[ \t\r\n]*")


class TraceEvents:
    """The dicts of `traceEvents`, in the file's order: `for event in TraceEvents(file)`.

    Numbers with a decimal point are strings with the file's digits: `ts` counts microseconds since
    a distant past with nanoseconds behind the point, which a float rounds.
    """

    def __init__(self, file: Path, advance: Callable[[int, str], None] | None = None) -> None:
        """Prepare to read JSON, or JSON in gzip; `advance` gets the bytes read, packed if it is."""
        self.fields: dict[str, Any] = {}
        """The fields beside `traceEvents`, such as `baseTimeNanoseconds`."""
        self.is_cut_off = False
        """Whether the file ends, or is damaged, before the end of its events; known at the end."""
        self._file = file
        self._advance = advance or (lambda done, note: None)
        self._decoder = json.JSONDecoder(parse_float=str, strict=False)
        self._text = ""
        self._at = 0
        self._before = 0
        self._chunks: Iterator[str] = iter(())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Read the file.

        Raises:
            InputError: The file cannot be read, is not JSON, or has no `traceEvents`.
        """
        first = ""
        try:
            with os.fdopen(regular_descriptor(self._file, pipes=True), "rb", buffering=0) as file:
                self._chunks = text_chunks(file, self._advance)
                first = self._peek()
                if not first:
                    self._refuse("is empty, or damaged at its beginning")
                if first not in "{[":
                    self._refuse("is not JSON: it does not begin with { or [")
                yield from self._events() if first == "[" else self._object()
        except EOFError:
            if "traceEvents" not in self.fields and first == "{":
                self._refuse("ends before its traceEvents")
            self.is_cut_off = True
        except UnicodeDecodeError as error:
            self._refuse("is neither JSON nor JSON in gzip", error)
        except OSError as error:
            raise InputError(f"{self._file}: cannot be read: {error.strerror or error}") from error

    def _more(self) -> bool:
        """Read the next part, and drop decoded text."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._before += self._at
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True

    def _peek(self) -> str:
        """Return the next character that is no blank; empty at the end of the file."""
        while True:
            blanks = BLANKS.match(self._text, self._at)
            self._at = blanks.end() if blanks else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """Return the next value."""
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # The text may end too early rather than be wrong: in a string, or near the end of a
                # number, `false`, `-Infinity`, `\\u00e4`.
                is_near_end = error.pos >= len(self._text) - 12
                may_go_on = is_near_end or error.msg.startswith("Unterminated string")
                if not may_go_on or len(self._text) - self._at >= LONGEST_EVENT:
                    self._refuse(f"is not JSON at character {self._before + error.pos}", error)
                if not self._more():
                    raise EOFError from error
            except (ValueError, RecursionError) as error:  # an integer of 4,301 digits; too deep
                place = self._before + self._at
                self._refuse(
                    f"has too many levels, or too long a number, from character {place}", error
                )
            else:
                # A value at the end of the text may go on in the next part: 12 of 123.
                if end < len(self._text) or not self._more():
                    self._at = end
                    return value

    def _object(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._next_item("}"):
            key = self._value()
            if (character := self._peek()) != ":":
                if not character:
                    raise EOFError
                self._refuse(f"is not JSON at character {self._before + self._at}: expected :")
            self._at += 1
            if key == "traceEvents" and self._peek() == "[":
                # None shows below that there was a list; its events are not kept.
                self.fields[key] = None
                yield from self._events()
            elif isinstance(key, str):
                self.fields[key] = self._value()
        if self.fields.get("traceEvents", "") is not None:
            self._refuse("has no list traceEvents; give a file of export_chrome_trace")

    def _events(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._next_item("]"):
            event = self._value()
            if isinstance(event, dict):
                yield event

    def _next_item(self, end: str) -> bool:
        """Step over a comma, or over the end."""
        character = self._peek()
        if character == ",":
            self._at += 1
            character = self._peek()
        if not character:
            raise EOFError
        if character == end:
            self._at += 1
        return character != end

    def _refuse(self, what: str, cause: Exception | None = None) -> NoReturn:
        raise InputError(f"{self._file}: {what}") from cause


CHUNK = 1 << 20  # Bytes read at a time


def text_chunks(raw: io.FileIO, advance: Callable[[int, str], None]) -> Iterator[str]:
    """Yield UTF-8 text, plain or in gzip; of a damaged gzip file the part before the damage."""
    decoder, file = codecs.getincrementaldecoder("utf-8-sig")(), io.BufferedReader(raw, CHUNK)
    # peek, not seek: the file may be a pipe, which has no place either.
    is_packed = file.peek(2)[:2] == b"\x1f\x8b"
    stream = gzip.GzipFile(fileobj=file) if is_packed else file
    try:
        while block := stream.read1(CHUNK):
            yield decoder.decode(block)
            if raw.seekable():
                advance(raw.tell(), "")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return
