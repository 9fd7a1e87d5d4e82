"""A problem's work, run again and again under oneDNN's own clock. Loads torch: for the worker."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.backends import mkldnn

from profiling.capture.descriptors import OUTPUT, redirected
from profiling.onednn_log.marks import Mark, mark_line
from profiling.peaks.caches import last_level_bytes

WARM_UP = 2
"""The first run makes kernels, the second finds memory where the first left it."""
LEAST_RUNS = 3
SECONDS = 2.0
"""For a problem's hot runs, and as long for its cold ones; the least number takes what it takes."""
TIMES_THE_CACHES = 2
WITHOUT_KNOWN_CACHES = 256 << 20
CPUS = Path("/sys/devices/system/cpu")


class Runs(NamedTuple):
    """How often a problem was run."""

    hot: int
    cold: int


def flusher(cpus: Path = CPUS) -> Callable[[], object]:
    """A call that drives everything else out of the caches, on all compute threads.

    It reads and writes twice as much as all last-level caches hold, or 256 MiB where the kernel
    does not tell their sizes. Each thread streams its part, so that its own caches go too.
    """
    size = TIMES_THE_CACHES * last_level_bytes(cpus) or WITHOUT_KNOWN_CACHES
    buffer = torch.zeros(size // 4)
    return lambda: buffer.add_(1.0)


def measure(
    run: Callable[[], object], log: Path, *, repeats: int, flush: Callable[[], object] | None
) -> Runs:
    """Run hot, then cold if there is a `flush`, and let oneDNN write each run into `log`.

    Each run is a step of the log, counted from 0, so that a reader tells them apart.
    """
    for _ in range(WARM_UP):
        run()
    with (
        log.open("ab", buffering=0) as file,
        redirected(OUTPUT, file.fileno()),
        mkldnn.verbose(mkldnn.VERBOSE_ON),
    ):
        hot = repeat(run, first=0, repeats=repeats, before=None)
        cold = repeat(run, first=hot, repeats=repeats, before=flush) if flush else 0
    return Runs(hot, cold)


def repeat(
    run: Callable[[], object], *, first: int, repeats: int, before: Callable[[], object] | None
) -> int:
    """Run, marked as steps from `first` on, until there are enough or time is up; how often."""
    end = time.monotonic() + SECONDS
    done = 0
    while done < max(repeats, LEAST_RUNS) and (done < LEAST_RUNS or time.monotonic() < end):
        if before is not None:
            before()
        mark(first + done, is_begin=True)
        run()
        mark(first + done, is_begin=False)
        done += 1
    return done


def mark(step: int, *, is_begin: bool) -> None:
    """Write a mark where oneDNN writes; it flushes each of its lines."""
    os.write(OUTPUT, mark_line(Mark(time.time() * 1000, is_begin, step, None)).encode())
