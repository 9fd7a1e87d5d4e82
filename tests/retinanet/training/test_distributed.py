import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.machine import thread_wait_times
from launch.process_group import ProcessGroup
from profiling.bench.worker_pool import busy_cores
from retinanet.config_file import load_config
from retinanet.engine.optimizers import make_optimizer
from retinanet.training import distributed
from retinanet.training.distributed import (
    STEPS,
    BackgroundLoad,
    SlowRank,
    advice_on_slow_rank,
    measured_speed,
    merge_results,
)
from retinanet.training.loop import StepResult, accumulate_gradients
from retinanet.training.train_state import random_states
from tests.launch.ranks import ended, run_ranks, start_apart
from tests.retinanet.training.tiny_steps import SIZE, make_batch, make_model, prepared
from tests.support.processes import child_processes
from tests.support.step_results import step_result


@pytest.mark.slow
def test_two_ranks_share_weights_statistics_files_and_errors() -> None:
    job = run_ranks(2, str(Path(__file__).with_name("distributed_ranks.py")))
    assert job.code == 0, job.errors
    ranks: list[dict[str, Any]] = [json.loads(line) for line in job.output.splitlines() if line]
    assert len(ranks) == 2
    for results in ranks:
        assert results["weights"] == [1.0] and results["optimizer steps"] == [1.0] * 4  # rank 0's
        assert results["equal"] and results["equal again"]
        assert not results["equal after a flipped bit"]
        assert results["mean"] == [1.5] * 4
        assert results["first before second"] and results["returned after both"]
        assert (results["batches"], results["error"]) == ([1], "second.jpg: damaged")


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_gloo_sums_gradients_of_three_ranks_in_one_order_from_the_first_step() -> None:
    """Else a resumed run would round its first steps differently from the uninterrupted run."""
    ranks = [ended(rank) for rank in start_apart(3, "tests/retinanet/training/gloo_ranks.py")]
    assert [rank.code for rank in ranks] == [0, 0, 0], ranks
    match = re.search(r"as before: (\w+); gradients: \[(\d+), (\d+)\] of (\d+)", ranks[0].output)
    assert match and match[1] == "True"
    assert match[2] == match[3] == match[4] and int(match[4]) > 30


STEP = step_result(7, exchange_seconds=0.25, bad_images=("a.jpg: damaged",))


def test_merged_step_has_mean_losses_and_the_slowest_times() -> None:
    other = replace(
        STEP,
        losses={"classification": 2.0, "bbox_regression": 0.0},
        seconds=2.5,
        data_seconds=0.75,
        page_faults=5,
        resident_mb=150.0,
        peak_resident_mb=150.0,
        exchange_seconds=0.5,
        bad_images=("b.jpg: damaged",),
    )
    assert merge_results([STEP, other]) == replace(
        STEP,
        losses={"classification": 1.5, "bbox_regression": 0.25},
        images=4,
        data_seconds=0.75,
        resident_mb=150.0,
        bad_images=("a.jpg: damaged", "b.jpg: damaged"),
    )
    assert merge_results([STEP]) == STEP


def test_merged_losses_are_weighted_by_images() -> None:
    other = replace(STEP, losses={"classification": 5.0, "bbox_regression": 0.0}, images=1)
    merged = merge_results([replace(STEP, images=3), other])
    assert merged.losses == {"classification": 2.0, "bbox_regression": 0.375}
    assert merged.images == 4


@pytest.mark.slow
def test_measuring_speed_changes_no_state() -> None:
    model = make_model()
    training = prepared(model, make_optimizer(model, name="adam", learning_rate=1e-3))
    accumulate_gradients(training, [make_batch(seed=1)])
    training.optimizer.step()  # a step during the measurement would change its averages
    training.optimizer.zero_grad(set_to_none=True)

    def state() -> list[torch.Tensor]:
        slots = [slot for slots in training.optimizer.state.values() for slot in slots.values()]
        return [*model.state_dict().values(), *filter(torch.is_tensor, slots)]

    before, random = [value.clone() for value in state()], random_states()
    assert measured_speed(training, group=ProcessGroup(), images=1, image_size=SIZE) > 0
    assert all(map(torch.equal, state(), before)) and random_states() == random
    assert all(parameter.grad is None for parameter in model.parameters())


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
    monkeypatch.setattr(distributed, "MOST_NAMED", 1000)  # others may use this core too
    monkeypatch.setattr(distributed, "LEAST_CORES", 0.01)
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
