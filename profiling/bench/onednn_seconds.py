"""Seconds that something spends inside oneDNN's primitives, from its own verbose output."""

import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from profiling.capture.descriptors import OUTPUT, redirected
from profiling.capture.onednn_verbose import verbose
from profiling.onednn_log.read import read_logs
from retinanet.errors import InputError


def onednn_seconds(run: Callable[[], object]) -> dict[str, float]:
    """Run once: seconds by kind of primitive, such as `convolution backward_data` or `reorder`."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "onednn.log"
        log.write_text(onednn_lines(run), encoding="utf-8")
        return seconds_by_kind(log)


def onednn_lines(run: Callable[[], object]) -> str:
    """Run once: oneDNN's log of it."""
    # oneDNN prints from C to descriptor 1, below Python's sys.stdout.
    with tempfile.TemporaryFile() as file:
        with redirected(OUTPUT, file.fileno()), verbose():
            run()
        file.seek(0)
        return file.read().decode("utf-8", errors="replace")


def seconds_by_kind(log: Path) -> dict[str, float]:
    """Sums of a log; empty where nothing ran in oneDNN."""
    try:
        calls = read_logs([log]).calls()
    except InputError:
        return {}
    totals: dict[str, float] = defaultdict(float)
    for problem, one in calls.items():
        name = f"{problem.kind} {problem.direction}".removesuffix(" undef")
        totals[name] += one.total_ms / 1000
    return dict(totals)
