"""Repeated runs of a problem by torch under oneDNN's log. Loads torch.

`answer` runs one problem of the worker (`profiling.replay.torch_replay`).
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch.backends import mkldnn

from common.console import redirected
from common.streams import OUTPUT
from profiling.onednn_log.parse import Mark, mark_line
from profiling.onednn_log.work import Problem
from profiling.peaks import last_level_bytes
from profiling.replay.replay import FEWEST_RUNS, LONGEST_SECONDS
from profiling.replay.torch_operators import NotReachedError, prepare

PROBLEM = TypeAdapter(Problem)
REFUSALS = (RuntimeError, ValueError, TypeError, MemoryError)
"""Exceptions of torch for arguments that it refuses; the next problem can still be run."""


def answer(question: dict[str, Any], flush: Callable[[], object]) -> dict[str, Any]:
    """Run a problem; return how often, `{"hot": 20, "cold": 20}`, or `{"why_not": "…"}`.

    The question is that of `TorchWorker.run`; `flush` drives everything out of the caches.
    """
    try:
        with torch.no_grad():
            return measure(
                prepare(PROBLEM.validate_python(question["problem"])),
                Path(question["log"]),
                repeats=question["repeats"],
                flush=flush if question["cold"] else None,
            )
    except NotReachedError as error:
        return {"why_not": str(error)}
    except REFUSALS as error:
        first_line = (str(error).strip() or type(error).__name__).split("\n", maxsplit=1)[0]
        return {"why_not": f"torch: {first_line}"}


WARM_UP = 2  # The first run makes kernels, the second reuses the memory of the first
TIMES_THE_CACHES = 2
WITHOUT_KNOWN_CACHES = 256 << 20


def flusher() -> Callable[[], object]:
    """Return a function that evicts all other data from the caches, on all compute threads.

    It reads and writes twice the size of all last-level caches, or 256 MiB if the kernel does not
    list their sizes. Each thread streams its part, so that its private caches are evicted too.
    """
    size = TIMES_THE_CACHES * last_level_bytes() or WITHOUT_KNOWN_CACHES
    buffer = torch.zeros(size // 4)
    return lambda: buffer.add_(1.0)


def measure(
    run: Callable[[], object], log: Path, *, repeats: int, flush: Callable[[], object] | None
) -> dict[str, int]:
    """Run with hot caches, then cold if there is a `flush`; oneDNN writes each run to `log`.

    Each run is a step of the log, counted from 0, so that a reader can separate them. Return how
    often it ran `hot` and `cold`.
    """
    # Before the log is switched on: these runs must not count.
    for _ in range(WARM_UP):
        run()
    with (
        log.open("ab", buffering=0) as file,
        redirected(OUTPUT, file.fileno()),
        mkldnn.verbose(mkldnn.VERBOSE_ON),
    ):
        hot = repeat(run, first=0, repeats=repeats, before=None)
        cold = repeat(run, first=hot, repeats=repeats, before=flush) if flush else 0
    return {"hot": hot, "cold": cold}


def repeat(
    run: Callable[[], object], *, first: int, repeats: int, before: Callable[[], object] | None
) -> int:
    """Repeat up to a count or a time limit, as steps from `first` on; return the count."""

    # To the descriptor that oneDNN writes to and flushes after each line. A buffer of
    # Python would change the order.
    def mark(*, is_begin: bool) -> None:
        line = mark_line(Mark(time.time() * 1000, is_begin, first + done, None))
        os.write(OUTPUT, line.encode())

    end = time.monotonic() + LONGEST_SECONDS
    done = 0
    while done < max(repeats, FEWEST_RUNS) and (done < FEWEST_RUNS or time.monotonic() < end):
        if before is not None:
            before()
        mark(is_begin=True)
        run()
        mark(is_begin=False)
        done += 1
    return done
