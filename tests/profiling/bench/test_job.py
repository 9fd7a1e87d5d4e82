"""Measured jobs: what the ranks report, and how a rank times its steps."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from launch.mpirun import Mpirun
from launch.process_group import ProcessGroup
from profiling.bench import job
from profiling.bench.job import (
    JobFailedError,
    MeasuredJob,
    doubling,
    measure_exchanges,
    measure_ranks,
)
from profiling.bench.measured_steps import time_steps
from retinanet.config_file import load_config
from retinanet.training.loop import StepResult
from tests.support.rank_steps import rank_steps

MPICH = Mpirun(Path("mpirun"), "mpich")
RANKS = [rank_steps(rank, [1.0, 2.0 + rank], data=[0.1, rank]) for rank in (0, 1)]
JOB = MeasuredJob(
    ranks=2,
    config="demo.yaml",
    overrides=("data.image_size=64",),
    warm_up=1,
    steps=2,
    alternate=True,
    scenes=Path("scenes"),
    own_model=True,
)


def replace_ranks(monkeypatch: pytest.MonkeyPatch, *messages: dict[str, Any]) -> list[Any]:
    """Let mpirun print these messages; returns the list of the ranks' commands."""
    commands: list[Any] = []

    def mpirun_command(mpirun: Any, command: list[str], **_: Any) -> list[str]:
        commands.append(command)
        lines = ["a line", *(job.MARK + json.dumps(message) for message in messages)]
        return [sys.executable, "-c", f"print({chr(10).join(lines)!r})"]

    monkeypatch.setattr(job, "mpirun_command", mpirun_command)
    return commands


def sent_job(command: list[str]) -> MeasuredJob:
    """Return the job as a rank reads it."""
    return TypeAdapter(MeasuredJob).validate_json(command[-1])


def test_steps_are_reported_and_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"ranks": [asdict(rank) for rank in RANKS]}
    commands = replace_ranks(monkeypatch, {"step": 1}, {"step": 2}, results)
    steps, lines = list[int](), list[str]()
    found = measure_ranks(JOB, mpirun=MPICH, advance=steps.append, print_line=lines.append)
    assert (found, steps, lines) == (RANKS, [1, 2], ["a line"])
    assert JOB.all_steps == 1 + 2 * 2
    [command] = commands
    assert replace(sent_job(command), hosts=()) == JOB


def test_job_without_results_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_ranks(monkeypatch, {"step": 1})
    with pytest.raises(JobFailedError, match="exit status 1") as failed:
        measure_ranks(JOB, mpirun=MPICH, advance=print, print_line=print)
    assert isinstance(failed.value, SystemExit) and failed.value.code == 1  # ends the command


@pytest.mark.parametrize(("compress", "sent"), [("none", 4), ("bf16", 2)])
def test_exchanges_are_as_large_on_the_wire_and_name_their_transport(
    monkeypatch: pytest.MonkeyPatch, compress: str, sent: int
) -> None:
    message = {"seconds": {str(1024 // sent): 0.1, str(4096 // sent): 0.2}, "hosts": 2}
    message |= {"way": "mpi", "reason": "started by mpich's mpirun"}
    commands = replace_ranks(monkeypatch, message)
    settings = [f"distributed.compress={compress}", "launch.comm_cores=2"]
    config = load_config("demo.yaml", ["distributed.backend=mpi", *settings])
    result = measure_exchanges(sizes=(1024, 4096), ranks=2, config=config, mpirun=MPICH)
    assert [(time.size, time.seconds) for time in result.times] == [(1024, 0.1), (4096, 0.2)]
    assert result.over == "measured over 2 hosts, mpi: started by mpich's mpirun"
    [command] = commands
    assert sent_job(command).exchanges == (1024 // sent, 4096 // sent)
    assert {"distributed.backend=mpi", *settings} <= set(sent_job(command).overrides)


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (7, (1, 2, 4, 7)), (8, (1, 2, 4, 8))],
)
def test_numbers_of_ranks_double_up_to_the_most(most: int, counts: tuple[int, ...]) -> None:
    assert doubling(most) == counts


class FakeExchange:
    """Records the steps without gradient exchange."""

    way = "gloo"
    is_held_back = False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        self.is_held_back = True
        yield
        self.is_held_back = False


def make_step(number: int) -> StepResult:
    memory: dict[str, Any] = {"page_faults": 0, "resident_mb": 1.0, "peak_resident_mb": 1.0}
    return StepResult(
        step=number, losses={}, gradient_norm=1.0, learning_rate=1e-6, images=4,
        seconds=float(number), data_seconds=0.5, **memory,
    )  # fmt: skip


@pytest.mark.parametrize("alternate", [False, True])
@pytest.mark.parametrize("is_alone", [False, True])
def test_rank_times_steps_after_the_warm_up(alternate: bool, is_alone: bool) -> None:
    exchange: Any = None if is_alone else FakeExchange()
    held_back: list[bool] = []

    def steps() -> Iterator[StepResult]:
        for number in range(1, 100):
            held_back.append(not is_alone and exchange.is_held_back)
            yield make_step(number)

    messages: list[Any] = []
    times = replace(JOB, warm_up=2, alternate=alternate)
    result = time_steps(steps(), times, exchange, group=ProcessGroup(), report=messages.append)
    alternates = alternate and not is_alone
    assert result.seconds == ([3.0, 5.0] if alternates else [3.0, 4.0])
    assert result.held_back_seconds == ([4.0, 6.0] if alternates else [])
    assert held_back == [False, False, False, alternates, False, alternates][: len(messages)]
    assert messages == [{"step": number + 1} for number in range(6 if alternates else 4)]
    assert (result.images, result.data_seconds) == (4, [0.5, 0.5])
    assert is_alone or result.way == "gloo"
