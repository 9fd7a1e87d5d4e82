"""`profile.onednn`: oneDNN's log of some steps, with marks of where each step and phase begins."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from profiling.capture.descriptors import OUTPUT, flush_c, redirected
from profiling.capture.onednn_verbose import verbose
from profiling.onednn_log.marks import Mark, facts_line, mark_line
from retinanet.engine.engines import PreparedTraining


class OneDnnHook:
    """Has oneDNN's output of a step go to a file, and adds marks; once, the run's facts.

    Between steps everything is as it was, so that an evaluation leaves nothing in the log.
    """

    def __init__(self, file: Path, *, facts: Callable[[PreparedTraining], dict[str, Any]]) -> None:
        self.file = file
        self._facts = facts
        self._log: int | None = None
        self._step = 0
        self._around_step = ExitStack()

    def open(self, prepared: PreparedTraining) -> None:
        """Begin the log with the facts.

        Raises:
            OSError: It cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._log = os.open(self.file, flags, 0o666)
        self._write(facts_line(self._facts(prepared)))

    def begin_step(self, number: int, prepared: PreparedTraining) -> None:
        """Begin to write.

        Raises:
            OSError: The log cannot be written.
        """
        assert self._log is not None
        self._step = number
        self._around_step.enter_context(redirected(OUTPUT, self._log))
        self._around_step.enter_context(verbose())
        self._mark(is_begin=True)

    def begin_phase(self, name: str) -> None:
        """Mark where it begins."""
        self._mark(name, is_begin=True)

    def end_phase(self, name: str) -> None:
        """Mark where it ends."""
        self._mark(name, is_begin=False)

    def end_step(self, *, whole: bool) -> None:
        """Cease to write; a step that is not whole has no end in the log, and so no time."""
        if whole:
            self._mark(is_begin=False)
        self._around_step.close()

    def close(self) -> None:
        """Let go of the log."""
        self._around_step.close()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _mark(self, phase: str | None = None, *, is_begin: bool) -> None:
        flush_c()
        self._write(mark_line(Mark(time.time_ns() / 1e6, is_begin, self._step, phase)))

    def _write(self, line: str) -> None:
        assert self._log is not None
        os.write(self._log, line.encode())
