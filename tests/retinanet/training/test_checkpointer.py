"""Which checkpoints stay, what a failed write leaves, and what a kill between two calls leaves."""

import os
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
    newest_whole,
    point_to,
    read_checkpoint,
    remove,
    write_checkpoint,
)
from retinanet.training.checkpointer import Checkpointer
from retinanet.training.train_state import (
    ModelDescription,
    State,
    TrainingPosition,
    random_states,
    read_state,
)

MODEL = ModelDescription(
    num_classes=1,
    norm="frozen",
    trainable_layers=0,
    image_size=64,
    precision="float32",
    classes={"category_ids": [1], "names": ["one"]},
)


def position(
    step: int, *, here: float | None = None, best: float | None = None
) -> TrainingPosition:
    return TrainingPosition(
        step=step, epoch=0, images=step, images_per_epoch=999, map_here=here, best_map=best
    )


def contents(step: int, *, values: int = 10) -> Contents:
    state = State(
        model=MODEL,
        position=position(step),
        setup={"ranks": 1},
        config={},
        random_states=[random_states()],
        parts={},
    )
    tensors = {"weight": torch.full((values,), float(step))}
    return Contents({"model.safetensors": tensors, "optimizer.safetensors": tensors}, state)


class Kept:
    """A checkpointer, its folder, and what it has warned of."""

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
def kept(tmp_path: Path) -> Kept:
    (tmp_path / "checkpoints").mkdir()
    return Kept(tmp_path / "checkpoints")


def test_the_last_ones_stay_and_the_link_names_the_newest(kept: Kept) -> None:
    kept.write(1, 2, 3, 4)
    assert kept.names() == ["last", "step-000003", "step-000004"]
    assert (kept.folder / "last").resolve().name == "step-000004"
    for name in ("step-000003", "last"):
        read_checkpoint(kept.folder / name).require_whole()
    assert kept.warnings == []


def test_the_best_stays_beside_the_last_ones(kept: Kept) -> None:
    kept.write(1)
    kept.checkpointer.add_evaluation(position(1, here=0.5, best=0.5))
    kept.write(2, 3)
    kept.checkpointer.add_evaluation(position(3, here=0.4, best=0.5))
    kept.write(4, 5)
    assert kept.names() == ["best", "last", "step-000001", "step-000004", "step-000005"]
    assert read_checkpoint(kept.folder / "best").position.map_here == 0.5
    kept.checkpointer.add_evaluation(position(5, here=0.6, best=0.6))
    assert kept.names() == ["best", "last", "step-000004", "step-000005"]
    assert (kept.folder / "best").resolve().name == "step-000005"


def test_an_evaluation_changes_nothing_but_the_position(kept: Kept) -> None:
    kept.write(7)
    before = read_state(kept.folder / "step-000007")
    kept.checkpointer.add_evaluation(position(7, here=0.25, best=0.5))
    after = read_checkpoint(kept.folder / "step-000007")
    after.require_whole()
    assert after.state == replace(before, position=position(7, here=0.25, best=0.5))


def test_training_goes_on_while_a_checkpoint_is_written(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()

    def slow_disk(folder: Path, what: Contents) -> None:
        assert may_write.wait(30)
        write_checkpoint(folder, what)

    monkeypatch.setattr(checkpointer, "write_checkpoint", slow_disk)
    kept.checkpointer.write(contents(3))
    assert kept.checkpointer.is_writing and not (kept.folder / "step-000003").exists()
    may_write.set()
    assert kept.checkpointer.is_there(3) and not kept.checkpointer.is_writing
    assert not kept.checkpointer.is_there(2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Kept]:
    """Room for two checkpoints of 100 000 values, not for three."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of its own takes root, and the right to mount")
    try:
        (disk / "checkpoints").mkdir()
        yield Kept(disk / "checkpoints")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_a_warning_each_time_and_the_last_good_one_stays(small_disk: Kept) -> None:
    for step in (1, 2):
        small_disk.checkpointer.write(contents(step, values=100_000))
    small_disk.checkpointer.wait()
    for step in (3, 4):
        small_disk.checkpointer.write(contents(step, values=100_000))
        assert not small_disk.checkpointer.is_there(step)
    assert len(small_disk.warnings) == 2
    assert "the checkpoint after step 3 could not be written" in small_disk.warnings[0]
    assert "No space left on device" in small_disk.warnings[0]
    assert "step-000002 is kept, training continues" in small_disk.warnings[0]
    assert small_disk.names() == ["last", "step-000001", "step-000002"]  # no half of one
    found, problems = newest_whole(small_disk.folder)
    assert found is not None and found.position.step == 2 and problems == []
    shutil.rmtree(small_disk.folder / "step-000001")
    small_disk.checkpointer.write(contents(5, values=100_000))
    assert small_disk.checkpointer.is_there(5) and small_disk.checkpointer.problem == ""


def test_a_disk_that_became_read_only_is_a_warning(small_disk: Kept) -> None:
    small_disk.write(1)
    disk = str(small_disk.folder.parent)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    small_disk.write(2)
    small_disk.checkpointer.add_evaluation(position(1, here=0.5, best=0.5))
    assert len(small_disk.warnings) == 2
    assert all("Read-only file system" in one for one in small_disk.warnings)
    assert read_checkpoint(small_disk.folder / "last").position == position(1)


def resumed(kept: Kept) -> tuple[Checkpoint, list[str]]:
    found, _ = newest_whole(kept.folder)
    assert found is not None
    again = Kept(kept.folder)
    return found, again.checkpointer.resume_from(found, epoch=0)


def test_what_a_killed_writer_leaves_is_removed_and_damaged_ones_are_set_aside(kept: Kept) -> None:
    kept.write(1, 2)
    (kept.folder / "step-000002" / "model.safetensors").write_bytes(b"cut")
    (kept.folder / ".step-000003.partial").mkdir()
    (kept.folder / ".step-000003.partial" / "model.safetensors").write_bytes(b"half")
    (kept.folder / ".step-000000.removed").mkdir()
    (kept.folder / ".best.partial").symlink_to("step-000001")
    found, said = resumed(kept)
    assert found.position.step == 1
    assert said == ["step-000002 is damaged and was renamed to damaged-step-000002"]
    assert kept.names() == ["damaged-step-000002", "last", "step-000001"]
    assert (kept.folder / "last").resolve().name == "step-000001"


def test_a_kill_before_the_links_were_set_loses_no_best(kept: Kept) -> None:
    kept.write(1)
    kept.checkpointer.add_evaluation(position(1, here=0.5, best=0.5))
    kept.write(2)
    kept.checkpointer.add_evaluation(position(2, here=0.6, best=0.6))
    point_to(kept.folder / "best", kept.folder / "step-000001")  # as if killed before the link
    (kept.folder / "last").unlink()
    found, _ = resumed(kept)
    assert found.position.step == 2
    assert (kept.folder / "best").resolve().name == "step-000002"
    assert (kept.folder / "last").resolve().name == "step-000002"


def test_removing_takes_the_name_first(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write(1)

    def killed(path: Path, ignore_errors: bool) -> None:
        """Nothing of it is removed."""

    monkeypatch.setattr(shutil, "rmtree", killed)
    remove(kept.folder / "step-000001")
    assert newest_whole(kept.folder) == (None, [])
