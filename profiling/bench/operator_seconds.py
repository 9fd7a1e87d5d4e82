"""Seconds in each of torch's operators, and in our own kernels."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile

from retinanet.bytes_moved import KernelCall, listening

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
