"""The hooks together, on a step of a small network: what one cannot do ends it alone."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import _get_current_dispatch_mode

from profiling.capture.backends import CountHook, OneDnnHook, ProfilerHook, TraceHook
from profiling.capture.hooks import Capture, format_steps
from profiling.trace.trace import read_trace
from retinanet.engine.engines import PreparedTraining
from tests.profiling.capture.small_runs import events_of, marks_of


@pytest.fixture
def small() -> PreparedTraining:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    return PreparedTraining(model, SGD(model.parameters(), lr=0.1), model)  # type: ignore[arg-type]


def hooks_in(folder: Path, *, onednn: range, trace: range) -> list[ProfilerHook]:
    log = OneDnnHook(folder / "onednn" / "rank0.log", onednn, facts=lambda _: {"rank": 0})
    return [TraceHook(folder / "trace" / "rank0.json.gz", trace), log]


def run_steps(capture: Capture, small: PreparedTraining, *, steps: range) -> None:
    for step in steps:
        with capture.step(step, small), capture.phase("forward"):
            small.model(torch.randn(1, 3, 16, 16))
    capture.close()


def test_each_window_has_its_steps_and_nothing_between(
    small: PreparedTraining, tmp_path: Path
) -> None:
    hooks = hooks_in(tmp_path, onednn=range(2, 4), trace=range(3, 5))
    run_steps(Capture(hooks), small, steps=range(1, 7))
    log, trace = tmp_path / "onednn" / "rank0.log", tmp_path / "trace" / "rank0.json.gz"
    words = ("begin,{}", "begin,{},forward", "end,{},forward", "end,{}")
    assert marks_of(log) == [word.format(step) for step in (2, 3) for word in words]
    names = [event["name"] for event in events_of(trace)]
    assert [one for one in names if one.startswith("step")] == ["step 3", "step 4"]
    assert names.count("module: 0") == names.count("aten::convolution") == 2
    assert Capture(hooks).final_notes() == []
    assert not small.model._forward_hooks and not small.model._forward_pre_hooks


def test_the_step_before_a_traces_window_is_counted_for_it(
    small: PreparedTraining, tmp_path: Path
) -> None:
    tracing = TraceHook(tmp_path / "trace" / "rank0.json.gz", range(3, 5))
    capture = Capture([CountHook(tracing, {2}), tracing])
    run_steps(capture, small, steps=range(1, 6))
    moved = read_trace(tracing.file).bytes_moved
    assert moved is not None and moved.step == 2
    [convolution] = [row for row in moved.rows if row.operator == "aten::convolution"]
    images, weights, maps = 3 * 16 * 16, 8 * 3 * 9 + 8, 8 * 14 * 14
    sizes = (4 * (images + weights), 4 * maps)
    assert convolution == ("forward", "aten::convolution", 1, *sizes)
    assert sum(event["name"].startswith("step") for event in events_of(tracing.file)) == 2
    assert capture.notes(range(3, 9)) == capture.final_notes() == []


def test_a_step_that_breaks_off_is_not_counted_for_a_trace(
    small: PreparedTraining, tmp_path: Path
) -> None:
    tracing = TraceHook(tmp_path / "trace" / "rank0.json.gz", range(2, 3))
    capture = Capture([CountHook(tracing, {1})])
    with pytest.raises(KeyboardInterrupt), capture.step(1, small):
        raise KeyboardInterrupt
    capture.close()
    assert tracing.bytes_moved is None
    assert _get_current_dispatch_mode() is None


@pytest.mark.parametrize("broken", ["onednn", "trace"])
def test_a_folder_that_cannot_be_made_ends_its_hook_alone(
    broken: str, small: PreparedTraining, tmp_path: Path
) -> None:
    (tmp_path / broken).write_text("a file where a folder should be")
    hooks = hooks_in(tmp_path, onednn=range(1, 3), trace=range(1, 3))
    run_steps(Capture(hooks), small, steps=range(1, 4))
    [note] = Capture(hooks).final_notes()
    path = tmp_path / broken
    told = f"profile.{broken}: {path}: cannot be written: File exists; training went on without it"
    assert note == told
    other = "trace/rank0.json.gz" if broken == "onednn" else "onednn/rank0.log"
    assert (tmp_path / other).stat().st_size > 100


def test_a_disk_that_is_full_gives_the_output_back(small: PreparedTraining, tmp_path: Path) -> None:
    (tmp_path / "onednn").mkdir()
    hooks = hooks_in(tmp_path, onednn=range(1, 3), trace=range(9, 10))
    hooks[1].is_open = True  # so that it takes the name as it is
    log = hooks[1]
    log.file = Path("/dev/full")
    capture = Capture(hooks)
    before = os.fstat(1)
    with pytest.raises(OSError, match="No space left"):
        log.open(small)
    run_steps(capture, small, steps=range(1, 2))
    assert hooks[1].problem == "/dev/full: cannot be written: No space left on device"
    assert os.fstat(1) == before


def test_a_step_that_an_error_ends_is_not_counted(small: PreparedTraining, tmp_path: Path) -> None:
    hooks = hooks_in(tmp_path, onednn=range(1, 9), trace=range(1, 9))
    capture = Capture(hooks)
    before = os.fstat(1)
    with pytest.raises(KeyboardInterrupt), capture.step(1, small), capture.phase("loss"):
        raise KeyboardInterrupt
    assert os.fstat(1) == before
    capture.close()
    assert marks_of(tmp_path / "onednn" / "rank0.log") == ["begin,1", "begin,1,loss"]
    assert (tmp_path / "trace" / "rank0.json.gz").exists()
    assert all("nothing is written" in note for note in Capture(hooks).final_notes())


def test_what_does_not_come_is_told_before_and_after(tmp_path: Path) -> None:
    hooks = hooks_in(tmp_path, onednn=range(20, 23), trace=range(5, 6))
    assert Capture(hooks).notes(range(1, 11)) == [
        "profile.onednn: this run takes steps 1-10, nothing of steps 20-22"
    ]
    assert len(Capture(hooks).notes(range(31, 41))) == 2
    hooks[0].done = [5]
    hooks[1].done = [20, 21]
    assert Capture(hooks).final_notes() == [
        "profile.onednn: of steps 20-22 this run trained only steps 20-21"
    ]


@pytest.mark.parametrize(
    ("steps", "text"),
    [([7], "step 7"), ([3, 4], "steps 3-4"), ({40, 2, 3}, "steps 2, 3, 40")],
)
def test_steps_as_words(steps: list[int], text: str) -> None:
    assert format_steps(steps) == text
