"""`profile.trace`: torch.profiler's trace of some steps, with marks of what runs."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from profiling.capture.descriptors import errors_to_nowhere
from profiling.capture.module_marks import modules_marked
from profiling.trace.bytes_moved import KEY
from retinanet.engine.engines import PreparedTraining

CPU = [ProfilerActivity.CPU]


class TraceHook:
    """Traces steps, and nothing between them, into one file: Chrome's JSON, packed.

    Marks are `step 20`, `phase: forward` and `module: backbone.body.layer3.0.conv2`. Operators of
    the backward pass have the sequence numbers of those of the forward pass that they belong to.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.bytes_moved: dict[str, Any] | None = None
        """What a step's operators read and write, where that was counted; see `CountHook`."""
        self._profiler: profile | None = None
        self._around_step = ExitStack()
        self._around_phase = ExitStack()

    def open(self, prepared: PreparedTraining) -> None:
        """Start the profiler, which takes a second; it traces nothing yet."""
        # With shapes, memory would grow by a gigabyte a step of two large images.
        self._profiler = profile(activities=CPU)
        with errors_to_nowhere():
            self._profiler.start()
        self._trace(on=False)

    def begin_step(self, number: int, prepared: PreparedTraining) -> None:
        """Begin to trace."""
        self._trace(on=True)
        self._around_step.enter_context(modules_marked(prepared))
        self._around_step.enter_context(record_function(f"step {number}"))

    def begin_phase(self, name: str) -> None:
        """Mark where it begins."""
        self._around_phase.enter_context(record_function(f"phase: {name}"))

    def end_phase(self, name: str) -> None:
        """Mark where it ends."""
        self._around_phase.close()

    def end_step(self, *, whole: bool) -> None:
        """Cease to trace."""
        self._around_phase.close()
        self._around_step.close()
        self._trace(on=False)

    def close(self) -> None:
        """Write the trace.

        Raises:
            OSError: It cannot be written.
        """
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        if self.bytes_moved is not None:
            profiler.add_metadata_json(KEY, json.dumps(self.bytes_moved))
        with errors_to_nowhere():  # it would tell of a GPU that is not there
            profiler.stop()
        partial = self.file.with_name(f".partial-{self.file.name}")
        try:
            profiler.export_chrome_trace(str(partial))
            partial.replace(self.file)
        finally:
            partial.unlink(missing_ok=True)

    def _trace(self, *, on: bool) -> None:
        assert self._profiler is not None
        with errors_to_nowhere():  # each change would be told there
            self._profiler.toggle_collection_dynamic(enable=on, activities=CPU)
