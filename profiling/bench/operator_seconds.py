"""Seconds in each of torch's operators, and in those of our own that convolve."""

from collections.abc import Callable

from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile

WINOGRAD = ("_WinogradConvolution", "_WinogradConvolutionBackward")
"""Names of the autograd function in retinanet/engine/winograd.py, forward and backward."""


def operator_seconds(run: Callable[[], object], *, limit: int = 20) -> dict[str, float]:
    """Run once under torch's profiler: the `limit` operators with the most time of their own."""
    events = sorted(watched(run), key=lambda event: -event.self_cpu_time_total)
    return {
        f"{event.key} x{event.count}": event.self_cpu_time_total / 1e6 for event in events[:limit]
    }


def winograd_seconds(run: Callable[[], object]) -> float:
    """Run once under torch's profiler: seconds inside our own convolutions."""
    return sum(event.cpu_time_total for event in watched(run) if event.key in WINOGRAD) / 1e6


def watched(run: Callable[[], object]) -> EventList:
    """Run once under torch's profiler: each operator's times, summed over its calls."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return profiler.key_averages()
