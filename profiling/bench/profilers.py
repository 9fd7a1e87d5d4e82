"""Where a run's time goes: oneDNN's primitives, torch's operators, our kernels; and bytes moved."""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile

from common.console import OUTPUT, redirected
from common.errors import InputError
from profiling.bench.variant import Prepared
from profiling.capture.backends import verbose
from profiling.capture.byte_counter import ByteCounter
from profiling.onednn_log.log import read_logs
from retinanet.engine.kernel_calls import KernelCall, listening


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


WINOGRAD = ("_WinogradConvolution", "_WinogradConvolutionBackward")
"""Names of the autograd function in retinanet/engine/winograd.py, forward and backward."""


def operator_seconds(run: Callable[[], object]) -> dict[str, float]:
    """Run once under torch's profiler: each operator's own time, the costliest first."""
    events = sorted(watched(run), key=lambda event: -event.self_cpu_time_total)
    return {f"{event.key} x{event.count}": event.self_cpu_time_total / 1e6 for event in events}


def winograd_seconds(run: Callable[[], object]) -> float:
    """Run once under torch's profiler: seconds inside our own convolutions."""
    return sum(event.cpu_time_total for event in watched(run) if event.key in WINOGRAD) / 1e6


@contextmanager
def kernel_seconds() -> Iterator[dict[str, float]]:
    """Add up the seconds in kernels of csrc, by name, while the context lasts."""
    found: dict[str, float] = {}

    def add(call: KernelCall) -> None:
        found[call.kernel] = found.get(call.kernel, 0.0) + call.seconds

    with listening(add):
        yield found


def watched(run: Callable[[], object]) -> EventList:
    """Run once under torch's profiler: each operator's times, summed over its calls."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return profiler.key_averages()


COMPILED = "compiled graphs"
"""Stands as phase and operator for all that torch.compile has made one."""

CALLED_IN_GRAPHS = ("aten::convolution", "aten::mm", "aten::addmm", "mkldnn::")
"""Beginnings of operators that compiled graphs call, and that are in inductor's count."""

Row = tuple[str, str, int, int, int]
"""Phase, operator, calls, bytes read, bytes written."""


def bytes_of_run(prepared: Prepared) -> list[Row]:
    """Run once and count, the largest first.

    The traffic of compiled graphs is what inductor counts of them, read and written together, and
    is given as read: their fused kernels are no operators.
    """
    phase = prepared.phase
    with ByteCounter(lambda: phase.name if phase is not None else "") as counter:
        prepared.run()
    rows: list[Row] = [
        (call.phase, call.operator, moved.calls, moved.read, moved.written)
        for call, moved in counter.moved.items()
    ]
    if prepared.compiled_bytes is not None:
        rows = [row for row in rows if not row[1].startswith(CALLED_IN_GRAPHS)]
        rows.append((COMPILED, COMPILED, 1, prepared.compiled_bytes(), 0))
    return sorted(rows, key=lambda row: -(row[3] + row[4]))
