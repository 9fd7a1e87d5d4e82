"""The worker of `profiling.peaks` with work of milliseconds, for a test of the real process."""

from collections.abc import Iterator, Sequence
from typing import Any

from launch.shares import Share
from profiling import peaks

SMALL = {"PROBE_SIZE": 128, "LARGE": 8, "SMALL": 4, "BUFFER_BYTES": 1 << 20}
measure = peaks.measurement


def measure_small_work(share: Share, notes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Shrink the work, then measure; loads torch only here, after the cores are taken."""
    from profiling import peaks_measure

    for name, value in SMALL.items():
        setattr(peaks_measure, name, value)
    peaks_measure.matrix_size = lambda threads: 128
    peaks.TIMES_THE_CACHES = 0
    yield from measure(share, notes)


if __name__ == "__main__":
    peaks.measurement = measure_small_work
    peaks.serve(peaks.prepare)
