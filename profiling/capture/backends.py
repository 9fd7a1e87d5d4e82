"""The hooks of a profiled training run: oneDNN's log, perf's counters, torch's trace, bytes.

Each watches some steps and writes one file. `profile.onednn` has oneDNN's log with marks of steps
and phases, `profile.perf` what processor and kernel count, `profile.trace` the trace with marks of
steps, phases and modules, and the bytes that the operators of the step before move. Between steps
nothing is recorded.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import nn
from torch.backends import mkldnn
from torch.profiler import ProfilerActivity, profile, record_function

from common.console import discard_errors, flush_c, redirected
from common.files import (
    new_descriptor,
    new_folder_beside,
    put_in_place,
    remove_earlier_file,
    write_json,
)
from common.streams import OUTPUT
from profiling.capture.byte_counter import ByteCounter, CurrentPhase
from profiling.onednn_log.parse import Mark, facts_line, mark_line
from profiling.trace.trace import KEY
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.folded_forward import FoldedForward


class ProfilerHook:
    """Watches some steps and writes one file.

    Training computes between the calls of its methods, never within one. They raise OSError,
    InputError or PerfFailedError if the hook cannot continue.
    """

    name = ""  # Its section of the configuration: `profile.onednn`
    content = ""  # The content of its file, for messages
    is_shown = True  # Whether messages name it; False for a hook that only serves another one

    def __init__(self, file: Path, steps: Collection[int], *, problem: str = "") -> None:
        """The name of the file may change before `open`."""
        self.file = file
        self.steps = steps
        self.is_open = False
        self.done: list[int] = []
        """Steps that it has watched as a whole."""
        self.problem = problem
        """Why it does not watch, or no longer."""

    def open(self, prepared: PreparedTraining) -> None:
        """Prepare the hook before the first step."""

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """Surround a step; an error in it reaches the context's end."""
        return nullcontext()

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Surround a phase of the step."""
        return nullcontext()

    def close(self) -> None:
        """Write the file after the last step. May be called twice."""


class OneDnnHook(ProfilerHook):
    """Writes oneDNN's output of steps to a file, with marks, after the run's facts.

    Between steps nothing is logged, so that an evaluation leaves nothing in the file.
    """

    name, content = "profile.onednn", "oneDNN's log"

    def __init__(
        self,
        file: Path,
        steps: Collection[int],
        *,
        facts: Callable[[PreparedTraining], dict[str, Any]],
    ) -> None:
        super().__init__(file, steps)
        self._facts = facts
        self._log: int | None = None
        self._step = 0

    def open(self, prepared: PreparedTraining) -> None:
        """Begin the log with the facts."""
        remove_earlier_file(self.file)
        self._log = new_descriptor(self.file, os.O_APPEND)
        self._write(facts_line(self._facts(prepared)))

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        """Log oneDNN's calls; an incomplete step has no end mark in the log."""
        assert self._log is not None
        self._step = number
        # oneDNN is silent before descriptor 1 is the terminal again.
        with redirected(OUTPUT, self._log), verbose(), self._marked(None):
            yield

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Mark begin and end of a phase."""
        return self._marked(name)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    @contextmanager
    def _marked(self, phase: str | None) -> Iterator[None]:
        self._mark(phase, is_begin=True)
        yield
        self._mark(phase, is_begin=False)

    def _mark(self, phase: str | None, *, is_begin: bool) -> None:
        # oneDNN prints into C's stdio buffer; unflushed, its lines would follow the mark.
        flush_c()
        # The clock of oneDNN's time stamps: milliseconds since 1970.
        self._write(mark_line(Mark(time.time_ns() / 1e6, is_begin, self._step, phase)))

    def _write(self, line: str) -> None:
        assert self._log is not None
        os.write(self._log, line.encode())


@contextmanager
def verbose() -> Iterator[None]:
    """Have oneDNN print every primitive while the context lasts: torch's and, if loaded, IPEX's."""
    with ExitStack() as stack:
        stack.enter_context(mkldnn.verbose(mkldnn.VERBOSE_ON))
        # IPEX has its own copy of oneDNN, with its own switch. It is not imported for that: IPEX
        # for another version of torch fails on import.
        ipex = sys.modules.get("intel_extension_for_pytorch")
        if ipex is not None:
            stack.enter_context(ipex.verbose(ipex.VERBOSE_ON))
        yield


SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults")
HARDWARE = (
    "cycles",
    "instructions",
    "branch-misses",
    "cache-references",
    "cache-misses",
    "dTLB-load-misses",
)


class PerfHook(ProfilerHook):
    """Counts only within steps, and writes one JSON file."""

    name, content = "profile.perf", "counters"

    def __init__(self, file: Path, steps: Collection[int], *, rank: int, problem: str = "") -> None:
        super().__init__(file, steps, problem=problem)
        self.not_counted: list[str] = []
        """Events that this machine has no counters for, once the file is written."""
        self._rank = rank
        self._perf: PerfStat | None = None
        self._seconds = 0.0

    def open(self, prepared: PreparedTraining) -> None:
        """Start perf."""
        self._perf = PerfStat((*SOFTWARE, *HARDWARE))

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        """Count; an interrupted step invalidates all counts."""
        assert self._perf is not None
        self._perf.count(on=True)
        begun = time.perf_counter()
        try:
            yield
        except BaseException:
            self._perf.end()
            self._perf = None
            raise
        self._seconds += time.perf_counter() - begun
        self._perf.count(on=False)

    def close(self) -> None:
        """Write the counts; there are none if perf has ended by itself."""
        if self._perf is None:
            return
        output = self._perf.end()
        self._perf = None
        if not self.done or not output:
            return
        counters, self.not_counted = parse_counters(output)
        content = {
            "rank": self._rank,
            "steps": self.done,
            "seconds": round(self._seconds, 6),
            "counters": counters,
            "not_counted": self.not_counted,
        }
        write_json(self.file, content)


def parse_counters(output: str) -> tuple[dict[str, Any], list[str]]:
    """Return the counters that `perf stat --field-separator ,` prints, and events without counters.

    A counter has value, unit, and the share of the time in which it was counted. See "CSV FORMAT"
    in perf-stat(1).
    """
    counters: dict[str, Any] = {}
    missing = []
    for line in output.splitlines():
        fields = line.split(",")
        if len(fields) < 5:
            continue
        value, unit, event, _, percent = fields[:5]
        name = event.partition(":")[0]  # `cycles:u` if counting kernel code is not permitted
        try:
            counters[name] = {"value": float(value), "unit": unit, "share": float(percent) / 100}
        except ValueError:  # <not supported>, <not counted>
            missing.append(name)
    return counters, missing


SECONDS_TO_ANSWER = 10


class PerfFailedError(RuntimeError):
    """perf cannot count on this machine; the message is perf's."""


class PerfStat:
    """A `perf stat` process for all present and future threads of this process."""

    def __init__(self, events: Sequence[str]) -> None:
        """Start perf without counting.

        Raises:
            PerfFailedError: It is not installed, or may not count.
        """
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        command = [
            *("perf", "stat", "--field-separator", ",", "--event", ",".join(events)),
            # Delay -1: events are off until the control pipe enables them.
            *("--delay", "-1", "--control", f"fd:{commands},{answers}"),
            *("--log-fd", str(self._output.fileno()), "--pid", str(os.getpid())),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(commands, answers, self._output.fileno()),
                start_new_session=True,  # Ctrl-C must reach the training only
                # In other locales numbers may have a decimal comma, and commas separate the fields.
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            self._close()
            raise PerfFailedError(f"perf: cannot be started: {error.strerror}") from error
        finally:
            # Only perf has these ends now, so that its death is the end of file for `count`.
            os.close(commands)
            os.close(answers)
        self.count(on=False)  # it is off already; the answer confirms that perf works

    def count(self, *, on: bool) -> None:
        """Start or stop to count; return when perf has confirmed it.

        Raises:
            PerfFailedError: It has ended.
        """
        try:
            os.write(self._commands, b"enable\n" if on else b"disable\n")
            ready, _, _ = select.select([self._answers], [], [], SECONDS_TO_ANSWER)
            answer = os.read(self._answers, 100) if ready else b""
        except OSError:
            answer = b""
        if not answer.startswith(b"ack"):
            self._errors.seek(0)
            lines = map(str.strip, self._errors.read().decode(errors="replace").splitlines())
            problem = next(
                (line for line in lines if line not in ("", "Error:")), "does not respond"
            )
            self.end()
            raise PerfFailedError(f"perf: {problem}")

    def end(self) -> str:
        """End perf; return its output, a line of comma-separated fields for each event.

        Empty if it has been ended before.
        """
        if self._output.closed:
            return ""
        # As at Ctrl-C, perf stat prints its counts.
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(SECONDS_TO_ANSWER)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        self._close()
        return output

    def _close(self) -> None:
        for descriptor in (self._commands, self._answers):
            os.close(descriptor)
        self._output.close()
        self._errors.close()


CPU = [ProfilerActivity.CPU]


class TraceHook(ProfilerHook):
    """Traces only within steps, into one file: Chrome's JSON in gzip.

    Marks are `step 20`, `phase: forward` and `module: backbone.body.layer3.0.conv2`. Operators of
    the backward pass have the sequence numbers of their forward operators.
    """

    name, content = "profile.trace", "trace"

    def __init__(self, file: Path, steps: Collection[int]) -> None:
        super().__init__(file, steps)
        self.bytes_moved: dict[str, Any] | None = None
        """The bytes that a step's operators read and write, if counted; see `CountHook`."""
        self._profiler: profile | None = None

    def open(self, prepared: PreparedTraining) -> None:
        """Start the profiler, which takes a second, without tracing."""
        # No record_shapes: memory would grow by a gigabyte per step of two large images.
        self._profiler = profile(activities=CPU)
        with discard_errors():
            self._profiler.start()
        self._trace(on=False)

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        """Trace a step and its modules."""
        self._trace(on=True)
        try:
            with modules_marked(prepared), record_function(f"step {number}"):
                yield
        finally:
            self._trace(on=False)

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Mark a phase."""
        mark: AbstractContextManager[object] = record_function(f"phase: {name}")
        return mark

    def close(self) -> None:
        """Write the trace."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        # Before the stop: torch ignores metadata without a running profiler.
        if self.bytes_moved is not None:
            profiler.add_metadata_json(KEY, json.dumps(self.bytes_moved))
        with discard_errors():  # Kineto warns that there is no GPU
            profiler.stop()
        # The exporter writes piece by piece; a killed run must not leave half a trace.
        with new_folder_beside(self.file) as folder:
            # Under its own name, since the suffix selects compression.
            profiler.export_chrome_trace(str(folder / self.file.name))
            put_in_place(folder / self.file.name, self.file)

    def _trace(self, *, on: bool) -> None:
        assert self._profiler is not None
        with discard_errors():  # Kineto logs each change to stderr
            self._profiler.toggle_collection_dynamic(enable=on, activities=CPU)


@contextmanager
def modules_marked(prepared: PreparedTraining) -> Iterator[None]:
    """Mark each module's forward pass in the context as `module: backbone.body.layer3.0.conv2`.

    The torch engine computes most modules without calling them, and calls `around` instead.
    """
    names = {module: f"module: {name}" for name, module in prepared.model.named_modules() if name}
    marks: list[record_function] = []

    def begin(module: nn.Module, inputs: object) -> None:
        marks.append(record_function(names[module]))
        marks[-1].__enter__()

    def end(module: nn.Module, inputs: object, outputs: object) -> None:
        marks.pop().__exit__(None, None, None)

    # always_call: a mark ends also if the forward pass raises an error.
    handles = [module.register_forward_pre_hook(begin) for module in names]
    handles += [module.register_forward_hook(end, always_call=True) for module in names]
    forward = prepared.forward
    try:
        if isinstance(forward, FoldedForward):
            around = forward.around
            forward.around = lambda module: record_function(names[module])
        yield
    finally:
        if isinstance(forward, FoldedForward):
            forward.around = around
        for handle in handles:
            handle.remove()


class CountHook(ProfilerHook):
    """Counts bytes in the step before a trace's window, and adds the sums to the trace.

    Within the window, the hundredths of a second that counting takes would be in the trace.
    """

    name, is_shown = "profile.trace", False

    def __init__(self, trace: TraceHook, steps: Collection[int]) -> None:
        super().__init__(trace.file, steps)
        self._trace = trace
        self._current = CurrentPhase()

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        """Count, and pass the sums of a complete step to the trace."""
        with ByteCounter(lambda: self._current.name) as counter:
            yield
        moved = counter.moved.items()
        rows = [[*call, each.calls, each.read, each.written] for call, each in moved]
        self._trace.bytes_moved = {"step": number, "operators": rows}

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Count for this phase."""
        return self._current.phase(name)
