"""Training with hooks: its files, weights as without hooks, and a signal between its steps."""

import json
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from profiling.onednn_log.log import read_logs
from profiling.onednn_log.parse import PHASES
from retinanet.engine.tile_convolution import Tiles, best_tiles
from retinanet.training.checkpoint import file_digest
from tests.launch.ranks import TrainHere
from tests.profiling.capture.training_runs import (
    marks_of_step,
    read_events,
    read_marks,
    run_settings,
)
from tests.support.fast_precision import FAST_PRECISION
from tests.support.training_runs import read_records, start_training

pytestmark = pytest.mark.slow

STEPS = [2, 3]
"""The evaluation after step 2 lies between them."""
CONVOLUTIONS = ("aten::convolution", "_Convolution", "_TileConvolution", "_WinogradConvolution")


class Runs(NamedTuple):
    """The folders and the outputs of both."""

    profiled: Path
    plain: Path
    output: str
    plain_output: str


@pytest.fixture(scope="module")
def runs(root: Path, train_here: TrainHere) -> Runs:
    """Both runs have one thread; the plain one evaluates at the end alone."""
    hooks = ("profile.onednn.steps=2-3", "profile.trace.steps=3", "profile.perf=true")
    process = start_training(*run_settings(root, "profiled", *hooks))
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    plain = train_here(*run_settings(root, "plain", "launch.threads=1", "evaluation.every=99"))
    assert (plain.code, plain.errors) == (0, "")
    return Runs(root / "profiled", root / "plain", output, plain.output)


@pytest.fixture(scope="module")
def log(runs: Runs) -> Path:
    return runs.profiled / "onednn" / "rank0.log"


@pytest.fixture(scope="module")
def events(runs: Runs) -> list[dict[str, Any]]:
    return read_events(runs.profiled / "trace" / "rank0.json.gz")


def test_weights_and_losses_equal_those_of_a_run_without_hooks(runs: Runs) -> None:
    for file in ("model.safetensors", "optimizer.safetensors"):
        run, other = (each / "checkpoints" / "last" / file for each in (runs.profiled, runs.plain))
        assert file_digest(run) == file_digest(other), file
    losses, expected_losses = (
        [record["loss"] for record in read_records(run, kind="step")]
        for run in (runs.profiled, runs.plain)
    )
    assert losses == expected_losses and len(losses) == 3
    assert len(read_records(runs.profiled, kind="evaluation")) == 2


def test_run_without_hooks_has_none_of_their_folders(runs: Runs) -> None:
    assert not {"onednn", "trace", "perf"} & {path.name for path in runs.plain.iterdir()}
    assert "profiled" not in runs.plain_output


def test_log_marks_every_step_and_phase_in_order(log: Path) -> None:
    assert read_marks(log) == [mark for step in STEPS for mark in marks_of_step(step)]


def test_every_primitive_lies_within_a_phase(log: Path) -> None:
    executed: Counter[str] = Counter()
    begun = 0.0
    phase = None
    for line in log.read_text().splitlines():
        kind, *fields = line.split(",")
        if kind == "profilednn_mark" and len(fields) == 4:
            assert float(fields[0]) >= begun
            begun, phase = float(fields[0]), None if fields[1] == "end" else fields[3]
        elif ",primitive,exec," in line:
            assert phase is not None, line
            assert float(fields[1]) >= begun
            executed[phase] += 1
    # At least one convolution per layer, and as many again for gradients of inputs and of weights.
    # Where the processor has BF16 most of these small ones are our own kernels, which do not
    # appear in oneDNN's log.
    forward, backward = {Tiles.AMX: (20, 10), Tiles.VECTORS: (1, 1), None: (50, 0)}[best_tiles()]
    assert executed["forward"] > forward * len(STEPS)
    assert executed["backward"] > (backward * len(STEPS) or executed["forward"])
    assert set(executed) == {"forward", "backward"}


def test_log_has_nothing_else_and_the_terminal_nothing_of_it(log: Path, runs: Runs) -> None:
    for line in log.read_text().splitlines():
        assert line.startswith(("onednn_verbose,v1,", "profilednn_mark,", "profilednn_facts,"))
    assert "_verbose" not in runs.output and "profilednn" not in runs.output
    assert "after step 2, epoch 1" in runs.output
    for text in ("finished after 3 steps", "steps 3/3"):
        assert text in runs.output and text in runs.plain_output


def test_log_is_read_with_its_header_and_facts(log: Path) -> None:
    read = read_logs([log])
    assert len(read.versions) == 1 and read.threads == [1] and len(read.instruction_sets) == 1
    assert read.steps == STEPS and read.ranks == [0] and read.not_understood_count == 0
    assert {where.phase for where in read.phase_ms} == {*PHASES, None}
    [facts] = read.facts
    expected = {
        **{"run": "profiled", "rank": 0, "ranks": 1, "local_rank": 0, "threads": 1},
        **{"images_a_step": 2, "image_size": 64, "precision": FAST_PRECISION, "engine": "torch"},
        **{"convolutions": "auto", "allocator": "tuned", "pinned": True, "ipex": None},
        "torch": torch.__version__,
    }
    assert {name: facts[name] for name in expected} == expected
    assert str(facts["cpus"]).isdigit() and str(facts["memory_nodes"]).isdigit()
    assert facts["own_kernels"] in ("winograd, vectors", "vectors", "tiles", None)
    assert isinstance(facts["command"], list) and facts["command"][0] == "train.py"


def test_trace_has_its_step_and_phases(events: list[dict[str, Any]]) -> None:
    marks = [event for event in events if event["cat"] == "user_annotation"]
    [step] = [event for event in marks if event["name"].startswith("step ")]
    assert step["name"] == "step 3"
    phases = [event for event in marks if event["name"].startswith("phase: ")]
    names = [event["name"] for event in sorted(phases, key=lambda event: event["ts"])]
    assert names == [f"phase: {phase}" for phase in PHASES]
    assert sum(event["dur"] for event in phases) > 0.8 * step["dur"]
    for event in events:
        if event["cat"] == "cpu_op":
            assert within(event, step), event["name"]


def test_trace_names_the_module_of_each_convolution(
    events: list[dict[str, Any]],
) -> None:
    modules = [event for event in events if event["name"].startswith("module: ")]
    operators = [event for event in events if event["cat"] == "cpu_op"]
    module_of_sequence = {}
    names = set()
    for operator in operators:
        if operator["name"] in CONVOLUTIONS:
            inner = min(
                (module for module in modules if within(operator, module)),
                key=lambda module: float(module["dur"]),
            )
            names.add(inner["name"].removeprefix("module: "))
            if "Sequence number" in operator["args"]:
                module_of_sequence[operator["args"]["Sequence number"]] = inner["name"]
    assert {
        "backbone.body.conv1",
        "backbone.body.layer3.0.conv2",
        "backbone.body.layer4.0.downsample.0",
        "backbone.fpn.inner_blocks.0.0",
        "backbone.fpn.extra_blocks.p7",
        "head.classification_head.conv.3.0",
        "head.classification_head.cls_logits",
        "head.regression_head.bbox_reg",
    } <= names
    backward = [
        operator["args"]["Sequence number"]
        for operator in operators
        if operator["name"].startswith("autograd::engine::evaluate_function: ")
        and "ConvolutionBackward" in operator["name"]
    ]
    assert len(backward) > 60
    assert set(backward) <= module_of_sequence.keys()


def within(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    end = event["ts"] + event["dur"]
    return bool(outer["ts"] <= event["ts"] and end <= outer["ts"] + outer["dur"])


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_perf_counts_the_profiled_steps(runs: Runs) -> None:
    file = runs.profiled / "perf" / "rank0.json"
    if not file.exists():
        assert "note: profile.perf: perf: " in runs.output
        pytest.skip("perf may not count on this machine")
    counted = json.loads(file.read_text())
    assert (counted["rank"], counted["steps"]) == (0, STEPS)
    busy = counted["counters"]["task-clock"]
    assert busy["unit"] == "msec"
    assert 0 < busy["value"] / 1000 < 1.5 * counted["seconds"]
    missing = f"for {', '.join(counted['not_counted'])}\n"
    assert (missing in runs.output) == bool(counted["not_counted"])


def test_summary_names_the_files_and_the_commands_that_read_them(runs: Runs) -> None:
    summary = runs.output[runs.output.index("profiled\n") :]
    log, trace = runs.profiled / "onednn" / "rank0.log", runs.profiled / "trace" / "rank0.json.gz"
    assert f"{log}, steps 2-3\n" in summary and f"{trace}, step 3\n" in summary
    assert f"retinanet profile stats {log} --out {log.with_name('stats')}\n" in summary
    assert f"retinanet profile trace {trace} --out {trace.with_name('tables')}\n" in summary


@pytest.mark.exhaustive
def test_signal_within_the_profiled_steps_leaves_whole_files(tmp_path: Path) -> None:
    settings = ("training.max_steps=9999", "training.epochs=9999", "evaluation.every=9999")
    window = ("profile.onednn.steps=2-9999", "profile.trace.steps=2-9999")
    process = start_training(*run_settings(tmp_path, "stopped", *settings, *window))
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (75, "")
    last = len(metrics.read_text().splitlines())
    steps = range(2, last + 1)
    log = tmp_path / "stopped" / "onednn" / "rank0.log"
    trace = tmp_path / "stopped" / "trace" / "rank0.json.gz"
    assert read_marks(log) == [mark for step in steps for mark in marks_of_step(step)]
    names = [event["name"] for event in read_events(trace) if event["name"].startswith("step ")]
    assert names == [f"step {step}" for step in steps]
    assert [file.name for file in trace.parent.iterdir()] == [trace.name]
    assert f"{log}, steps 2-{last}\n" in output
    assert f"note: profile.onednn: only steps 2-{last} of steps 2-9999" in output
    shutil.rmtree(tmp_path / "stopped")


def test_input_error_is_one_line_with_hooks(train_here: TrainHere, tmp_path: Path) -> None:
    settings = run_settings(tmp_path, "bad", "data.root=/nowhere", "profile.onednn.steps=1")
    done = train_here(*settings)
    assert done.code == 2 and done.errors.count("\n") == 1
    assert done.output == "" and not (tmp_path / "bad").exists()
