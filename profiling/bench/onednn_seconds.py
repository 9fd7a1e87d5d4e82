"""Seconds that something spends inside oneDNN's primitives, from its own verbose output."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from profiling.bench.onednn_log import seconds_by_primitive
from profiling.capture.descriptors import OUTPUT, redirected
from profiling.capture.onednn_verbose import verbose


def onednn_seconds(run: Callable[[], object]) -> dict[str, float]:
    """Run once; see `seconds_by_primitive` for what comes back."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "onednn.log"
        # oneDNN prints from C to descriptor 1, below Python's sys.stdout.
        with log.open("wb") as file, redirected(OUTPUT, file.fileno()), verbose():
            run()
        with log.open(encoding="utf-8", errors="replace") as lines:
            return seconds_by_primitive(lines)
