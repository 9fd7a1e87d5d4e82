import os
import threading
import time
from collections.abc import Iterator

import pytest

from common.machine import thread_wait_times
from profiling.bench.worker_pool import busy_cores
from retinanet.config_file import load_config
from retinanet.training import slow_hosts
from retinanet.training.loop import StepResult
from retinanet.training.slow_hosts import STEPS, BackgroundLoad, SlowRank, advice_on_slow_rank
from tests.support.processes import child_processes
from tests.support.step_results import step_result


def steps_of_ranks(*times: float) -> list[StepResult]:
    """Return the results of ranks whose forward passes took these times."""
    return [step_result(forward_seconds=seconds) for seconds in times]


def notes(slow: SlowRank, *steps: list[StepResult]) -> list[str]:
    return [note for results in steps if (note := slow.note(results))]


def test_slow_rank_is_named_once() -> None:
    slow = SlowRank(["a", "b", "c"])
    [note] = notes(slow, *[steps_of_ranks(1.1, 1.5, 0.9)] * 3 * STEPS)
    assert note.startswith("note: rank 1 on b is slow") and " 50% " in note
    assert len(notes(slow, *[steps_of_ranks(0.9, 0.8, 2.0)] * STEPS)) == 1


@pytest.mark.parametrize(
    "steps",
    [
        [steps_of_ranks(0.9, 0.1), steps_of_ranks(0.1, 0.9)] * STEPS,
        [steps_of_ranks(1.2, 1.0)] * 2 * STEPS,
        [steps_of_ranks(1.9, 0.1)] * (STEPS // 2),
        [steps_of_ranks(0.0)] * 2 * STEPS,
    ],
    ids=["alternating", "little slower", "few steps", "one rank"],
)
def test_no_rank_is_slow(steps: list[list[StepResult]]) -> None:
    assert notes(SlowRank(["a", "b"]), *steps) == []


@pytest.mark.parametrize(
    ("split", "batch_size", "advised"),
    [("even", 2, True), ("even", 1, False), ("speed", 2, False), ("[3, 1]", 2, False)],
)
def test_split_by_speed_is_advised_if_batches_are_even(
    split: str, batch_size: int, advised: bool
) -> None:
    overrides = [f"training.batch_size={batch_size}", f"distributed.batch_split={split}"]
    slow = SlowRank(["a", "b"], advice=advice_on_slow_rank(load_config("demo.yaml", overrides)))
    [note] = notes(slow, *[steps_of_ranks(1.0, 1.5)] * STEPS)
    assert ("distributed.batch_split=speed" in note) == advised


CPU = max(os.sched_getaffinity(0))


@pytest.fixture
def busy_process() -> Iterator[int]:
    """Another process that keeps `CPU` busy."""
    before = set(child_processes(os.getpid()))
    with busy_cores([CPU]):
        [process] = set(child_processes(os.getpid())) - before
        yield process


@pytest.fixture
def compute_thread() -> Iterator[None]:
    """A thread of this process that computes on `CPU`."""
    is_over = threading.Event()

    def compute() -> None:
        os.sched_setaffinity(0, {CPU})
        while not is_over.is_set():
            sum(range(10_000))

    thread = threading.Thread(target=compute)
    thread.start()
    yield
    is_over.set()
    thread.join()


def first_note(load: BackgroundLoad, *, seconds: float) -> str | None:
    """Return the first note within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        if note := load.note():
            return note
    return None


@pytest.mark.slow
@pytest.mark.usefixtures("compute_thread")
def test_process_on_the_same_core_is_named_once(
    busy_process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_hosts, "MOST_NAMED", 1000)  # others may use this core too
    monkeypatch.setattr(slow_hosts, "LEAST_CORES", 0.01)
    before = thread_wait_times()
    load = BackgroundLoad({CPU}, place="rank 3 on node7", seconds=0.3)
    note = first_note(load, seconds=20)
    assert note is not None and "\n" not in note
    assert "rank 3 on node7" in note
    assert f"process {busy_process}," in note
    assert "started by this run" in note  # the loop is a child of this process
    assert first_note(load, seconds=0.7) is None
    waited = {thread: s - before.get(thread, 0.0) for thread, s in thread_wait_times().items()}
    assert waited[os.getpid()] < max(waited.values())  # the main thread sleeps


@pytest.mark.slow
@pytest.mark.whole_machine  # its thread wakes up late where others wait for the core too
@pytest.mark.usefixtures("busy_process")
def test_sleeping_threads_are_no_reason_for_a_note() -> None:
    load = BackgroundLoad({CPU}, place="rank 0 on node7", seconds=0.3)
    assert first_note(load, seconds=0.7) is None
