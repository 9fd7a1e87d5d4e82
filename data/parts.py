"""Files read in parts: by one process per core with a progress bar, or ahead by threads."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from numpy.typing import NDArray
from rich.console import Console

from common.console import progress
from common.processes import process_pool, run_tasks, usable_cores
from data.json_lists import no_garbage_collection

TASKS_PER_PROCESS = 4  # enough that no process waits, few enough to end soon after Ctrl-C
Part = TypeVar("Part")
Item = TypeVar("Item")
Result = TypeVar("Result")


def processes_for(items: int, *, at_once: int, per_core: int = 1) -> int:
    """Return `per_core` processes for each core, unless there are fewer parts."""
    return max(1, min(per_core * usable_cores(), -(-items // at_once)))


def read_in_parts(
    read: Callable[[Any], Part],
    items: Sequence[Any] | NDArray[Any],
    *,
    at_once: int,
    title: str,
    console: Console,
    per_core: int = 1,
    prepare: Callable[[Any], Any] = lambda part: part,
) -> list[Part]:
    """Return what `read` makes of each `at_once` consecutive items, in their order.

    So few that they are one part are read in this process. `read` gets what `prepare` returns for
    them here. Raises what `read` raises, and InputError if a process was killed.
    """
    starts = range(0, len(items), at_once)
    processes = processes_for(len(items), at_once=at_once, per_core=per_core)
    tasks = ((start, prepare(items[start : start + at_once])) for start in starts)
    parts: dict[int, Part] = {}
    done, began = 0, time.monotonic()
    # The processes are copies of this one: they are started before the progress bar's thread.
    pools = process_pool(processes) if len(starts) > 1 else nullcontext()
    with pools as pool, progress(console, title, total=len(items)) as advance:
        work = partial(read_task, read)
        at_a_time = TASKS_PER_PROCESS * processes
        results = run_tasks(pool, work, tasks, at_once=at_a_time) if pool else map(work, tasks)
        for start, part in results:
            parts[start] = part
            done += len(items[start : start + at_once])
            advance(done, f"{done / max(1e-9, time.monotonic() - began):.0f} images/s")
    return [parts.pop(start) for start in starts]


def read_task(read: Callable[[Any], Part], task: tuple[int, Any]) -> tuple[int, Part]:
    """Return what a task's items are read to, with the place of the first."""
    with no_garbage_collection():
        return task[0], read(task[1])


def read_ahead(
    items: Iterable[Item],
    read: Callable[[Item], Result],
    pool: ThreadPoolExecutor,
    *,
    batch_size: int,
) -> Iterator[list[tuple[Item, Result]]]:
    """Yield batches of items with what `read` returns, while the next batch is being read."""
    remaining = iter(items)
    reading: deque[list[tuple[Item, Future[Result]]]] = deque()
    while batch := list(islice(remaining, batch_size)):
        reading.append([(item, pool.submit(read, item)) for item in batch])
        if len(reading) > 1:
            yield [(item, result.result()) for item, result in reading.popleft()]
    for last in reading:
        yield [(item, result.result()) for item, result in last]
