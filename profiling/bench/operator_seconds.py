"""Seconds in each of torch's operators, and in those of our own that convolve."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

WINOGRAD = ("_WinogradConvolution", "_WinogradConvolutionBackward")
"""Names of the autograd function in retinanet/engine/winograd.py, forward and backward."""


def operator_seconds(run: Callable[[], object], *, limit: int = 20) -> dict[str, float]:
    """Run once under torch's profiler: the `limit` operators with the most time of their own."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return {
        f"{event.key} x{event.count}": event.self_cpu_time_total / 1e6 for event in events[:limit]
    }


def winograd_seconds(run: Callable[[], object]) -> float:
    """Run once under torch's profiler: seconds inside our own convolutions."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    ours = (event for event in profiler.key_averages() if event.key in WINOGRAD)
    return sum(event.cpu_time_total for event in ours) / 1e6
