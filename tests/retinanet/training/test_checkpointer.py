"""Which checkpoints are kept, and what failed writes and killed runs leave."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from retinanet.training import checkpointer
from retinanet.training.checkpoint import (
    Checkpoint,
    Contents,
    newest_valid,
    point_to,
    read_checkpoint,
    remove,
    write_checkpoint,
)
from retinanet.training.checkpointer import Checkpointer, CheckpointTimer
from retinanet.training.progress import Progress
from retinanet.training.train_state import random_states, read_state
from tests.support.mounts import needs_root, tmpfs
from tests.support.states import STATE


def position(step: int, *, current: float | None = None, best: float | None = None) -> Progress:
    return Progress(
        step=step, epoch=0, images=step, images_per_epoch=999, map_here=current, best_map=best
    )


def contents(step: int, *, values: int = 10) -> Contents:
    state = replace(STATE, position=position(step), random_states=[random_states()])
    tensors = {"weight": torch.full((values,), float(step))}
    return Contents({"model.safetensors": tensors, "optimizer.safetensors": tensors}, state)


class Writer:
    """A checkpointer, its folder and its warnings."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self.checkpointer = Checkpointer(folder, keep=keep, warn=self.warnings.append)

    def write(self, *steps: int) -> None:
        for step in steps:
            self.checkpointer.write(contents(step))
        self.checkpointer.wait()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    (tmp_path / "checkpoints").mkdir()
    return Writer(tmp_path / "checkpoints")


def test_newest_checkpoints_are_kept_and_last_points_to_the_newest(writer: Writer) -> None:
    writer.write(1, 2, 3, 4)
    assert writer.names() == ["last", "step-000003", "step-000004"]
    assert (writer.folder / "last").resolve().name == "step-000004"
    for name in ("step-000003", "last"):
        read_checkpoint(writer.folder / name).require_complete()
    assert writer.warnings == []


def test_best_checkpoint_is_kept(writer: Writer) -> None:
    writer.write(1)
    writer.checkpointer.add_evaluation(position(1, current=0.5, best=0.5))
    writer.write(2, 3)
    writer.checkpointer.add_evaluation(position(3, current=0.4, best=0.5))
    writer.write(4, 5)
    assert writer.names() == ["best", "last", "step-000001", "step-000004", "step-000005"]
    assert read_checkpoint(writer.folder / "best").position.map_here == 0.5
    writer.checkpointer.add_evaluation(position(5, current=0.6, best=0.6))
    assert writer.names() == ["best", "last", "step-000004", "step-000005"]
    assert (writer.folder / "best").resolve().name == "step-000005"


def test_evaluation_changes_only_the_position(writer: Writer) -> None:
    writer.write(7)
    before = read_state(writer.folder / "step-000007")
    writer.checkpointer.add_evaluation(position(7, current=0.25, best=0.5))
    after = read_checkpoint(writer.folder / "step-000007")
    after.require_complete()
    assert after.state == replace(before, position=position(7, current=0.25, best=0.5))


def test_writing_does_not_block_training(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()

    def slow_disk(folder: Path, content: Contents) -> None:
        assert may_write.wait(30)
        write_checkpoint(folder, content)

    monkeypatch.setattr(checkpointer, "write_checkpoint", slow_disk)
    writer.checkpointer.write(contents(3))
    assert writer.checkpointer.is_writing and not (writer.folder / "step-000003").exists()
    may_write.set()
    assert writer.checkpointer.is_there(3) and not writer.checkpointer.is_writing
    assert not writer.checkpointer.is_there(2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Writer]:
    """Mount a disk for two checkpoints of 100 000 values, not for three."""
    with tmpfs(tmp_path / "disk", "size=2m") as disk:
        (disk / "checkpoints").mkdir()
        yield Writer(disk / "checkpoints")


@needs_root
def test_full_disk_is_a_warning_and_keeps_the_last_checkpoint(small_disk: Writer) -> None:
    for step in (1, 2):
        small_disk.checkpointer.write(contents(step, values=100_000))
    small_disk.checkpointer.wait()
    for step in (3, 4):
        small_disk.checkpointer.write(contents(step, values=100_000))
        assert not small_disk.checkpointer.is_there(step)
    assert len(small_disk.warnings) == 2
    for part in ("step 3 could not be written", "No space left on device", "step-000002 is kept"):
        assert part in small_disk.warnings[0]
    assert small_disk.names() == ["last", "step-000001", "step-000002"]  # no partial one
    checkpoint, problems = newest_valid(small_disk.folder)
    assert checkpoint is not None and checkpoint.position.step == 2 and problems == []
    shutil.rmtree(small_disk.folder / "step-000001")
    small_disk.checkpointer.write(contents(5, values=100_000))
    assert small_disk.checkpointer.is_there(5) and small_disk.checkpointer.problem == ""


@needs_root
def test_read_only_disk_is_a_warning(small_disk: Writer) -> None:
    small_disk.write(1)
    disk = str(small_disk.folder.parent)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    small_disk.write(2)
    small_disk.checkpointer.add_evaluation(position(1, current=0.5, best=0.5))
    assert len(small_disk.warnings) == 2
    assert all("Read-only file system" in warning for warning in small_disk.warnings)
    assert read_checkpoint(small_disk.folder / "last").position == position(1)


def resumed(writer: Writer) -> tuple[Checkpoint, list[str]]:
    checkpoint, _ = newest_valid(writer.folder)
    assert checkpoint is not None
    return checkpoint, Writer(writer.folder).checkpointer.resume_from(checkpoint, epoch=0)


def test_resuming_removes_partial_files_and_renames_damaged_checkpoints(writer: Writer) -> None:
    writer.write(1, 2)
    (writer.folder / "step-000002" / "model.safetensors").write_bytes(b"cut")
    (writer.folder / ".step-000003.partial").mkdir()
    (writer.folder / ".step-000003.partial" / "model.safetensors").write_bytes(b"half")
    (writer.folder / ".step-000000.0123456789abcdef.partial").mkdir()
    (writer.folder / ".best.partial").symlink_to("step-000001")
    checkpoint, [note] = resumed(writer)
    assert checkpoint.position.step == 1
    assert "damaged-step-000002" in note
    assert writer.names() == ["damaged-step-000002", "last", "step-000001"]
    assert (writer.folder / "last").resolve().name == "step-000001"


def test_resuming_sets_links_that_a_killed_run_did_not_set(writer: Writer) -> None:
    writer.write(1)
    writer.checkpointer.add_evaluation(position(1, current=0.5, best=0.5))
    writer.write(2)
    writer.checkpointer.add_evaluation(position(2, current=0.6, best=0.6))
    point_to(writer.folder / "best", writer.folder / "step-000001")  # as if killed before the link
    (writer.folder / "last").unlink()
    checkpoint, _ = resumed(writer)
    assert checkpoint.position.step == 2
    assert (writer.folder / "best").resolve().name == "step-000002"
    assert (writer.folder / "last").resolve().name == "step-000002"


def test_removal_first_renames_the_folder(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.write(1)

    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if killed before it
    remove(writer.folder / "step-000001")
    assert newest_valid(writer.folder) == (None, [])


def due_steps(every: str, *, steps: int, first: int = 0) -> list[int]:
    """Return the steps after which a checkpoint is due, with four steps per epoch."""
    timer = CheckpointTimer(every)
    timer.restart(step=first, epoch=first / 4)
    due = []
    for step in range(first + 1, steps + 1):
        if timer.is_due(step=step, epoch=step / 4):
            timer.restart(step=step, epoch=step / 4)
            due.append(step)
    return due


@pytest.mark.parametrize(
    ("every", "first", "expected"),
    [
        ("3 steps", 0, [3, 6, 9, 12]),
        ("3 steps", 4, [6, 9, 12]),
        ("epoch", 0, [4, 8, 12]),
        ("2 epochs", 3, [8]),
    ],
)
def test_intervals_in_steps_and_epochs_count_from_the_start_of_the_run(
    every: str, first: int, expected: list[int]
) -> None:
    assert due_steps(every, steps=12, first=first) == expected


def test_checkpoint_that_was_not_begun_remains_due() -> None:
    timer = CheckpointTimer("4 steps")
    assert [timer.is_due(step=step, epoch=0) for step in (3, 4, 5)] == [False, True, True]


def test_interval_in_time_counts_from_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(checkpointer.time, "monotonic", lambda: now)
    timer = CheckpointTimer("2min")
    now += 119
    assert not timer.is_due(step=1, epoch=0)
    now += 1
    assert timer.is_due(step=2, epoch=0)
    timer.restart(step=2, epoch=0)
    assert not timer.is_due(step=3, epoch=0)
