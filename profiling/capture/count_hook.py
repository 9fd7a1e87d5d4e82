"""The bytes that a step's operators move, counted for a trace."""

from pathlib import Path

from profiling.byte_counter import ByteCounter
from profiling.capture.trace_hook import TraceHook
from retinanet.engine.engines import PreparedTraining


class CountHook:
    """Counts in the step before a trace's window, and puts the sums into the trace.

    Not within the window: counting takes a few hundredths of a second of Python, and would be in
    the trace.
    """

    def __init__(self, trace: TraceHook) -> None:
        self.file: Path = trace.file
        self._trace = trace
        self._phase = ""
        self._number = 0
        self._counter: ByteCounter | None = None

    def open(self, prepared: PreparedTraining) -> None:
        """Do nothing."""

    def begin_step(self, number: int, prepared: PreparedTraining) -> None:
        """Begin to count."""
        self._number = number
        self._counter = ByteCounter(lambda: self._phase)
        self._counter.__enter__()

    def begin_phase(self, name: str) -> None:
        """Count for a phase from now on."""
        self._phase = name

    def end_phase(self, name: str) -> None:
        """Count for no phase."""
        self._phase = ""

    def end_step(self, *, whole: bool) -> None:
        """Cease to count, and keep the sums of a whole step for the trace."""
        counter, self._counter = self._counter, None
        if counter is None:
            return
        counter.__exit__(None, None, None)
        if whole:
            rows = [
                [*call, moved.calls, moved.read, moved.written]
                for call, moved in counter.moved.items()
            ]
            self._trace.bytes_moved = {"step": self._number, "operators": rows}

    def close(self) -> None:
        """Cease to count in a step that was broken off."""
        self.end_step(whole=False)
