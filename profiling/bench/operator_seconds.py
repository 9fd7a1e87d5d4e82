"""Seconds in each of torch's operators."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def operator_seconds(run: Callable[[], object], *, limit: int = 20) -> dict[str, float]:
    """Run once under torch's profiler: the `limit` operators with the most time of their own."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return {
        f"{event.key} x{event.count}": event.self_cpu_time_total / 1e6 for event in events[:limit]
    }
