import os
import threading
import time
from collections.abc import Iterator

import pytest

from common.machine import thread_wait_times
from profiling.bench.worker_pool import busy_cores
from retinanet.training.distributed import BackgroundLoad
from tests.support.processes import children_of

CPU = max(os.sched_getaffinity(0))


@pytest.fixture
def busy_process() -> Iterator[int]:
    """Another process that keeps `CPU` busy."""
    before = set(children_of(os.getpid()))
    with busy_cores([CPU]):
        [process] = set(children_of(os.getpid())) - before
        yield process


@pytest.fixture
def compute_thread() -> Iterator[None]:
    """A thread of this process that computes on `CPU`."""
    ended = threading.Event()

    def compute() -> None:
        os.sched_setaffinity(0, {CPU})
        while not ended.is_set():
            sum(range(10_000))

    thread = threading.Thread(target=compute)
    thread.start()
    yield
    ended.set()
    thread.join()


def first_note(load: BackgroundLoad, *, seconds: float) -> str | None:
    """What is noted within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        if note := load.note():
            return note
    return None


@pytest.mark.usefixtures("compute_thread")
def test_a_process_on_the_same_core_is_named_once(busy_process: int) -> None:
    load = BackgroundLoad({CPU}, place="rank 3 on node7", seconds=0.4)
    note = first_note(load, seconds=20)
    assert note is not None and "\n" not in note
    assert "rank 3 on node7" in note
    assert f"process {busy_process}," in note
    assert "started by this run" in note  # the loop is a child of this process
    assert first_note(load, seconds=1.5) is None


@pytest.mark.usefixtures("busy_process")
def test_threads_that_do_not_wait_for_a_core_are_no_reason_for_a_note() -> None:
    load = BackgroundLoad({CPU}, place="rank 0 on node7", seconds=0.4)
    assert first_note(load, seconds=1.5) is None  # this thread sleeps


@pytest.mark.usefixtures("compute_thread", "busy_process")
def test_waiting_is_counted_for_the_thread_that_waits() -> None:
    before = thread_wait_times()
    time.sleep(0.5)
    after = thread_wait_times()
    waited = {thread: after[thread] - before.get(thread, 0.0) for thread in after}
    assert waited[os.getpid()] < max(waited.values())
