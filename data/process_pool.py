"""Processes that share out work, and end with this one."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from data.worker_signals import let_signals_in, signals_blocked
from retinanet.errors import InputError

SECONDS_BETWEEN_SIGNALS = 0.2
"""How long Ctrl-C waits at the most."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, whatever ends it, after the task that each is in.

    They are copies of this process, so start them before threads, such as a progress bar's. While
    the context lasts, Ctrl-C and SIGTERM come through between two results of `results_of` alone:
    an exception out of the middle of the pool's own code would leave its locks taken for ever.
    """
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("fork"),  # others would import torch in each
        initializer=begin,
    )
    with signals_blocked():
        try:
            pool.submit(os.getpid)  # the first task starts them all
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def begin() -> None:
    """Work on one thread, and end when the parent has ended, even if that was killed."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for libraries that a decoder loads now
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def results_of(
    pool: ProcessPoolExecutor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    at_once: int,
) -> Iterator[Result]:
    """The function's results, as they come, not in the order of the tasks.

    Only `at_once` of the tasks are handed out at a time, so that millions of them take no memory.

    Raises:
        InputError: A process was killed, as the kernel does where memory runs out.
    """
    left = iter(tasks)
    running: set[Future[Result]] = set()
    try:
        while True:
            room = at_once - len(running)
            running |= {pool.submit(function, task) for task in islice(left, room)}
            if not running:
                return
            done, running = wait(
                running, timeout=SECONDS_BETWEEN_SIGNALS, return_when=FIRST_COMPLETED
            )
            let_signals_in()
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise InputError(
            "a process that reads images was killed, most likely for want of memory; "
            "run on fewer cores: taskset -c 0-1 and the same command"
        ) from error
