"""The hooks together, on steps of a small network: an error in one of them ends it alone."""

import errno
import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import _get_current_dispatch_mode

from launch.process_group import ProcessGroup
from profiling.capture.backends import CountHook, OneDnnHook, ProfilerHook, TraceHook
from profiling.capture.hooks import (
    Capture,
    capturing,
    collect_run_facts,
    create_hooks,
    images_a_step,
)
from profiling.trace.trace import read_trace
from retinanet.config_file import load_config
from retinanet.engine.engines import PreparedTraining
from tests.profiling.capture.training_runs import read_events, read_marks


@pytest.fixture
def small() -> PreparedTraining:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    return PreparedTraining(model, SGD(model.parameters(), lr=0.1), model)  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "onednn" / "rank0.log"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace" / "rank0.json.gz"


def make_hooks(folder: Path, *, onednn: range, trace: range) -> list[ProfilerHook]:
    log = OneDnnHook(folder / "onednn" / "rank0.log", onednn, facts=lambda _: {"rank": 0})
    return [TraceHook(folder / "trace" / "rank0.json.gz", trace), log]


def run_steps(hooks: list[ProfilerHook], small: PreparedTraining, *, steps: range) -> list[str]:
    """Run steps and return the notes at the end."""
    capture = Capture(hooks)
    for step in steps:
        with capture.step(step, small), capture.phase("forward"):
            small.model(torch.randn(1, 3, 16, 16))
    capture.close()
    return capture.final_notes()


def test_each_file_has_its_steps_alone(
    small: PreparedTraining, log: Path, trace: Path, tmp_path: Path
) -> None:
    hooks = make_hooks(tmp_path, onednn=range(2, 4), trace=range(3, 5))
    assert run_steps(hooks, small, steps=range(1, 7)) == []
    marks = ("begin,{}", "begin,{},forward", "end,{},forward", "end,{}")
    assert read_marks(log) == [mark.format(step) for step in (2, 3) for mark in marks]
    names = [event["name"] for event in read_events(trace)]
    assert [name for name in names if name.startswith("step")] == ["step 3", "step 4"]
    assert names.count("module: 0") == names.count("aten::convolution") == 2
    assert not small.model._forward_hooks and not small.model._forward_pre_hooks


def test_resumed_run_adds_a_log_and_leaves_the_earlier_one_alone(
    small: PreparedTraining, log: Path, tmp_path: Path
) -> None:
    log.parent.mkdir()
    log.write_text("earlier")
    run_steps(
        make_hooks(tmp_path, onednn=range(7, 8), trace=range(9, 10)), small, steps=range(7, 8)
    )
    assert log.read_text() == "earlier"
    assert read_marks(log.with_name("rank0-from-step-7.log"))[0] == "begin,7"


def test_bytes_are_counted_in_the_step_before_the_trace(
    small: PreparedTraining, trace: Path
) -> None:
    tracing = TraceHook(trace, range(3, 5))
    hooks = [CountHook(tracing, {2}), tracing]
    assert run_steps(hooks, small, steps=range(1, 6)) == Capture(hooks).notes(range(3, 9)) == []
    moved = read_trace(tracing.file).bytes_moved
    assert moved is not None and moved.step == 2
    [convolution] = [row for row in moved.rows if row.operator == "aten::convolution"]
    images, weights, maps = 3 * 16 * 16, 8 * 3 * 9 + 8, 8 * 14 * 14
    sizes = (4 * (images + weights), 4 * maps)
    assert convolution == ("forward", "aten::convolution", 1, *sizes)
    assert sum(event["name"].startswith("step") for event in read_events(trace)) == 2


def test_bytes_of_an_interrupted_step_are_dropped(small: PreparedTraining, trace: Path) -> None:
    tracing = TraceHook(trace, range(2, 3))
    capture = Capture([CountHook(tracing, {1})])
    with pytest.raises(KeyboardInterrupt), capture.step(1, small):
        raise KeyboardInterrupt
    capture.close()
    assert tracing.bytes_moved is None
    assert _get_current_dispatch_mode() is None


@pytest.mark.parametrize("broken", ["onednn", "trace"])
def test_folder_that_cannot_be_created_ends_its_hook_alone(
    broken: str, small: PreparedTraining, log: Path, trace: Path, tmp_path: Path
) -> None:
    (tmp_path / broken).write_text("a file in the folder's place")
    hooks = make_hooks(tmp_path, onednn=range(1, 3), trace=range(1, 3))
    [note] = run_steps(hooks, small, steps=range(1, 4))
    assert note.startswith(f"profile.{broken}: {tmp_path / broken}: cannot be written: File exists")
    assert (trace if broken == "onednn" else log).stat().st_size > 100


def test_file_that_cannot_be_written_ends_the_hook_and_restores_the_output(
    small: PreparedTraining, tmp_path: Path
) -> None:
    hooks = make_hooks(tmp_path, onednn=range(1, 3), trace=range(9, 10))
    hook = hooks[1]
    hook.file = Path("/dev/full")
    before = os.fstat(1)
    with pytest.raises(OSError, match="it is not a regular file"):
        hook.open(small)
    assert Path("/dev/full").is_char_device()  # root could have replaced it
    (tmp_path / "file").touch()
    hook.file = tmp_path / "file" / "rank0.log"
    run_steps(hooks, small, steps=range(1, 2))
    assert hook.problem == f"{tmp_path / 'file'}: cannot be written: File exists"
    assert os.fstat(1) == before


def test_interrupted_step_is_not_recorded(
    small: PreparedTraining, log: Path, trace: Path, tmp_path: Path
) -> None:
    hooks = make_hooks(tmp_path, onednn=range(1, 9), trace=range(1, 9))
    capture = Capture(hooks)
    before = os.fstat(1)
    with pytest.raises(KeyboardInterrupt), capture.step(1, small), capture.phase("loss"):
        raise KeyboardInterrupt
    assert os.fstat(1) == before
    capture.close()
    assert read_marks(log) == ["begin,1", "begin,1,loss"]
    assert trace.exists()
    assert all("nothing was recorded" in note for note in capture.final_notes())


def test_notes_name_steps_that_are_not_recorded(tmp_path: Path) -> None:
    hooks = make_hooks(tmp_path, onednn=range(20, 23), trace=range(5, 6))
    [note] = Capture(hooks).notes(range(1, 11))
    assert note.startswith("profile.onednn: ")
    assert "steps 1-10" in note and "steps 20-22" in note
    assert len(Capture(hooks).notes(range(31, 41))) == 2
    hooks[0].done = [5]
    hooks[1].done = [20, 22]
    [note] = Capture(hooks).final_notes()
    assert note.startswith("profile.onednn: only steps 20, 22 of steps 20-22")


def test_hook_that_fails_in_a_phase_restores_the_output(
    small: PreparedTraining, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = make_hooks(tmp_path, onednn=range(1, 3), trace=range(1, 3))
    before = os.fstat(1)

    def fail(phase: str | None, *, is_begin: bool) -> None:
        if phase is not None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hooks[1], "_mark", fail)
    assert len(run_steps(hooks, small, steps=range(1, 3))) == 1
    assert hooks[1].problem.endswith("cannot be written: No space left on device")
    assert os.fstat(1) == before and trace.stat().st_size > 100


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_files_are_printed_also_after_an_error(
    error: type[BaseException] | None, small: PreparedTraining, trace: Path, tmp_path: Path
) -> None:
    config = load_config("demo.yaml", ["profile.trace.steps=1-3"])
    output = io.StringIO()
    console = Console(file=output, width=200)
    rank = {"place": None, "group": ProcessGroup()}
    try:
        with capturing(config, tmp_path, console=console, **rank) as capture:  # type: ignore[arg-type]
            with capture.step(1, small):
                small.model(torch.randn(1, 3, 16, 16))
            if error is not None:
                with capture.step(2, small):
                    raise error
    except KeyboardInterrupt:
        assert error is not None
    assert f"{trace}, step 1\n" in output.getvalue()
    assert ("only step 1 of steps 1-3" in output.getvalue()) == (error is None)


def test_missing_perf_is_noted_before_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    config = load_config("demo.yaml", ["profile.onednn.steps=3", "profile.perf=true"])
    hooks = create_hooks(config, tmp_path, place=None, group=ProcessGroup())  # type: ignore[arg-type]
    [note] = Capture(hooks).notes(range(1, 9))
    assert note.startswith("profile.perf: perf is not installed")
    assert not any(tmp_path.iterdir())


def test_facts_are_those_of_the_rank(small: PreparedTraining) -> None:
    share = SimpleNamespace(cpus=(4, 5), nodes=(1,))
    place: Any = SimpleNamespace(
        pinned=SimpleNamespace(share=share, enabled=True),
        ranks=SimpleNamespace(local_rank=1, local_size=2),
    )
    group = ProcessGroup(rank=3, size=4, hosts=("a", "a", "b", "b"))
    facts = collect_run_facts(small, config=load_config("demo.yaml"), place=place, group=group)
    assert {"cpus": "4-5", "memory_nodes": "1", "host": "b"}.items() <= facts.items()
    assert [facts[name] for name in ("rank", "local_rank", "local_ranks")] == [3, 1, 2]


@pytest.mark.parametrize(
    ("split", "images"), [("even", [4, 4]), ("[3, 1]", [6, 2]), ("speed", [None, None])]
)
def test_images_a_step_are_known_unless_the_split_is_measured(
    split: str, images: list[int | None]
) -> None:
    settings = ["training.batch_size=2", "training.gradient_accumulation=2"]
    config = load_config("demo.yaml", [*settings, f"distributed.batch_split={split}"])
    ranks = [ProcessGroup(rank=rank, size=2) for rank in (0, 1)]
    assert [images_a_step(config, rank) for rank in ranks] == images
    alone = load_config("demo.yaml", [*settings, "distributed.batch_split=speed"])
    assert images_a_step(alone, ProcessGroup()) == 4
