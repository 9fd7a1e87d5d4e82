import pytest

from retinanet.training import checkpointer
from retinanet.training.checkpointer import CheckpointTimer


def due_steps(every: str, *, steps: int, first: int = 0) -> list[int]:
    """Steps after which a checkpoint is due, in a run of four steps an epoch."""
    one = CheckpointTimer(every)
    one.restart(step=first, epoch=first / 4)
    found = []
    for step in range(first + 1, steps + 1):
        if one.is_due(step=step, epoch=step / 4):
            one.restart(step=step, epoch=step / 4)
            found.append(step)
    return found


def test_every_so_many_steps_counts_from_the_runs_start() -> None:
    assert due_steps("3 steps", steps=10) == [3, 6, 9]
    assert due_steps("3 steps", steps=10, first=4) == [6, 9]


def test_every_epoch_is_its_last_step() -> None:
    assert due_steps("epoch", steps=12) == [4, 8, 12]
    assert due_steps("2 epochs", steps=16, first=3) == [8, 16]


def test_one_that_could_not_be_begun_stays_due() -> None:
    one = CheckpointTimer("4 steps")
    assert [one.is_due(step=step, epoch=0) for step in (3, 4, 5)] == [False, True, True]


def test_a_time_counts_from_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(checkpointer.time, "monotonic", lambda: now)
    one = CheckpointTimer("2min")
    now += 119
    assert not one.is_due(step=1, epoch=0)
    now += 1
    assert one.is_due(step=2, epoch=0)
    one.restart(step=2, epoch=0)
    assert not one.is_due(step=3, epoch=0)
