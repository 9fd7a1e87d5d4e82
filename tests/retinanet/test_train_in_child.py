"""`train` from Python: its metrics, its end, and the end of what started it."""

import json
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.errors import InputError, NonFiniteLossError, WorkerDiedError
from retinanet import EvaluationRecord, StepRecord, Training, train
from retinanet.metrics_reader import MetricsReader
from retinanet.train_in_child import override_pairs
from retinanet.training.checkpoint import read_checkpoint
from tests.support.commands import error_message, run_program, start_program
from tests.support.processes import child_processes, is_running, wait_until_ended
from tests.support.training_runs import read_records

TINY: dict[str, Any] = {
    "data": {"image_size": 64, "scenes": {"train": 8, "validation": 2}},
    "training": {"batch_size": 2, "epochs": 2, "target_map": None},
    "evaluation": {"pictures": 0},
    "engine": {"precision": "float32"},
    "launch": {"threads": 1, "pin": False},
}
STEP = {
    "kind": "step", "step": 3, "epoch": 0.75, "loss": None, "classification": 1.0,
    "bbox_regression": 0.5, "learning_rate": 1e-3, "gradient_norm": None, "images": 2,
    "images_per_second": 4.0, "seconds": 0.5, "resident_mb": 100.0,
}  # fmt: skip


def tiny(run: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a training of seconds in the folder `run`."""
    names = {"run": {"root": run.parent, "name": run.name}}
    return {name: TINY.get(name, {}) | sections.get(name, {}) for name in TINY} | names


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Put a small program in the place of train.py."""

    def replace(text: str) -> None:
        file = tmp_path / "program.py"
        file.write_text(text)
        command = [sys.executable, str(file)]
        monkeypatch.setattr("retinanet.training_job.train_command", lambda: command)

    return replace


def test_settings_become_pairs_whose_values_are_yaml() -> None:
    settings = {
        "training": {"epochs": 3, "target_map": None},
        "data": {"scenes": {"train": 8}, "root": Path("/d")},
        "engine": "torch",
        "run": {"name": "a: é😀"},
        "evaluation": {"every": np.int64(2), "overlap": np.bool_(True)},
    }
    assert [*override_pairs(settings)] == [
        "training.epochs=3",
        "training.target_map=null",
        "data.scenes.train=8",
        'data.root="/d"',
        'engine="torch"',
        'run.name="a: é😀"',
        "evaluation.every=2",
        "evaluation.overlap=true",
    ]
    half = torch.tensor(0.5)
    assert [*override_pairs({"training": {"milestones": (half, np.float32(2))}})] == [
        "training.milestones=[0.5, 2.0]"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": "demo", "training": {"epoch": 3}}, "training.epoch: no such field; did you"),
        ({"config": "dem"}, "dem: no such configuration file; did you mean demo.yaml?"),
        ({"config": "demo", "training": {"epochs": "many"}}, "training.epochs: input should be"),
        ({"config": {"training": {"epochz": 3}}}, "config: training.epochz: no such field"),
        ({"config": {"data": 3}}, "config: data: "),
        ({"config": "x" * 300}, "x: File name too long"),
        ({"config": "demo", "run": {"root": "a\0b"}}, "given with it: has a NUL character"),
        ({"config": "demo", "ranks": 0}, "ranks: expected a whole number from 1, found 0"),
        ({"config": "demo", "ranks": 1.5}, "ranks: expected a whole number from 1, found 1.5"),
        ({"config": None}, "config: expected a path, a name in configs/ or a mapping of sections"),
        ({"config": ["a"]}, "mapping of sections, found list"),
        ({"training": {"epochs": object()}}, "training.epochs: expected a number, text, list or"),
        ({"data": {"augmentation": ["flip", {1}]}}, "data.augmentation[1]: expected a number, "),
        ({"training": {"epochs": np.arange(2)}}, "training.epochs: expected a number, text, list"),
        ({"config": {"data": {"root": {1}}}}, "config: data.root: expected a number, text, list "),
        ({"config": "demo", "resume": True, "overwrite": True}, "give one of them"),
    ],
)
def test_wrong_settings_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    assert message in error_message(train, **arguments)


def test_reader_begins_with_its_own_start_and_waits_for_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    reader = MetricsReader(file)
    [own] = reader.environment.values()
    before = json.dumps(STEP) + "\n" + json.dumps({"kind": "start", "step": 3, "id": "a"}) + "\n"
    line = json.dumps(STEP | {"step": 4}) + "\n"
    assert [*reader.read()] == []
    file.write_text(before + line)
    assert [*reader.read()] == []
    # A resumed run has dropped the later lines before it writes.
    start = json.dumps({"kind": "start", "step": 3, "id": own}) + "\n"
    file.write_text(before + start + line + line[:20])
    assert next(reader.read())["step"] == 4 and [*reader.read()] == []
    with file.open("a") as stream:
        stream.write(line[20:] + line)
    first = next(reader.read())
    assert [first, *reader.read()] == [STEP | {"step": 4}] * 2 and [*reader.read()] == []


@pytest.mark.parametrize(
    ("program_text", "error", "message"),
    [
        ("import sys; sys.exit('error: data.root: none')", WorkerDiedError, "data.root: none"),
        (
            "print('error: a: give --resume, --overwrite, run.name=NEW'); exit(2)",
            InputError,
            "^a: give resume=True, overwrite=True, run={'name': 'NEW'}$",
        ),
        ("import sys; print('error: NaN'); sys.exit(3)", NonFiniteLossError, "^NaN$"),
        ("raise RuntimeError('broken')", WorkerDiedError, "status 1: RuntimeError: broken"),
        ("import os; os.kill(os.getpid(), 9)", WorkerDiedError, r"SIGKILL \(out of memory\?\)"),
    ],
)
def test_failure_of_the_process_is_raised_with_its_line(
    program: Callable[[str], None],
    tmp_path: Path,
    program_text: str,
    error: type[Exception],
    message: str,
) -> None:
    program(program_text)
    training = train("demo", **tiny(tmp_path / "run"))
    with pytest.raises(error, match=message):
        training.wait()
    assert training.result is not None and not training.result.is_finished
    assert training.result.last_checkpoint is None


def test_stopping_before_the_start_leaves_nothing(
    program: Callable[[str], None], tmp_path: Path
) -> None:
    program("import time; print('begun', flush=True); time.sleep(60)")
    with train("demo", **tiny(tmp_path / "run")) as training:
        process = training._job._process.pid
        assert repr(training) == f"<Training {tmp_path / 'run'}, 0%>"
    result = training.stop()
    assert (result.steps, result.is_finished, result.best_map) == (0, False, None)
    assert not is_running(process) and not Path(training._temporary.name).exists()


def test_python_that_ends_stops_the_training_with_a_note(tmp_path: Path) -> None:
    text = f"""
import retinanet.training_job as module
from retinanet import train
module.train_command = lambda: ["sleep", "60"]
print(train("demo", run={{"root": {str(tmp_path)!r}, "name": "x"}})._job._process.pid)
"""
    done = run_program(sys.executable, "-c", text, check=True, timeout=60)
    assert not is_running(int(done.stdout))
    assert (
        done.stderr == f"{tmp_path / 'x'}: stopped, since Python ends; wait() trains to the end\n"
    )


RECORDS = [
    STEP,
    {"kind": "bad_image", "step": 3, "problem": "a.jpg"},
    {"kind": "evaluation", "step": 4, "epoch": 1, "map": 0.25, "map_50": 0.5, "map_75": None,
     "mar_1": 0.1, "per_class": {"Bus": None}, "seconds": 2.0},
    STEP | {"step": 5},
]  # fmt: skip


def test_leaving_the_loop_over_the_records_stops_the_training(
    program: Callable[[str], None], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    program(f"""
import json, os, time
from pathlib import Path
Path({str(run)!r}).mkdir()
records = [{{"kind": "start", "step": 0, "id": os.environ["RETINANET_START"]}}, *{RECORDS!r}]
Path({str(run)!r}, "metrics.jsonl").write_text("".join(json.dumps(r) + chr(10) for r in records))
time.sleep(60)
""")
    training, taken = train("demo", **tiny(run)), []
    for record in training:
        taken.append(record)
        if record.step == 4:
            break
    assert training.result is not None and not is_running(training._job._process.pid)
    assert (training.result.steps, training.result.is_finished) == (5, False)
    step, evaluation = taken
    assert isinstance(step, StepRecord) and math.isnan(step.loss) and step.seconds == 0.5
    assert step.losses == {"classification": 1.0, "bbox_regression": 0.5}
    assert str(step) == "step 3, epoch 0.75: loss nan, 4.00 images/s"
    assert isinstance(evaluation, EvaluationRecord) and math.isnan(evaluation.per_class["Bus"])
    assert [*evaluation.metrics] == ["map", "map_50", "map_75", "mar_1"]
    assert str(evaluation) == "step 4, epoch 1.00: mAP 0.250, mAP50 0.500"


CALLER = """
import sys, time
from retinanet import train
training = train("demo", **{settings!r})
print(training._job._process.pid, flush=True)
for record in training:
    print(record, flush=True)
"""


@pytest.mark.slow
def test_a_run_ends_with_its_caller_and_is_resumed_and_finished(root: Path) -> None:
    run = root / "left"
    settings = tiny(run, training={"epochs": 500})
    settings["run"]["root"] = str(run.parent)
    for end in (signal.SIGKILL, signal.SIGINT):
        program = CALLER.format(settings={**settings, "resume": end is signal.SIGINT})
        caller = start_program(sys.executable, "-c", program, start_new_session=True)
        assert caller.stdout is not None
        process = int(caller.stdout.readline())
        assert caller.stdout.readline().startswith("step ")
        everything = [process, *child_processes(process)]
        caller.send_signal(end)
        caller.wait(60)
        wait_until_ended(everything, seconds=60)
        done = read_records(run, kind="step")[-1]["step"]
        assert read_checkpoint(run).position.step == done
    training = train("demo", resume=True, **tiny(run, training={"max_steps": done + 2}))
    records = list(training)
    # The evaluation of an epoch that ended with the stop may come first.
    steps = [record.step for record in records if isinstance(record, StepRecord)]
    assert steps == [done + 1, done + 2]
    assert isinstance(records[-1], EvaluationRecord)
    assert training.progress == 1 and training.wait() == training.result
    assert f"finished after {done + 2} steps" in training.output
    result = training.wait()
    assert result.run == run and result.is_finished and result.steps == done + 2
    assert result.best_checkpoint == run / "checkpoints" / "best"
    maps = [record["map"] for record in read_records(run, kind="evaluation")]
    assert result.best_map == max(maps)


@pytest.mark.slow
@pytest.mark.whole_machine
def test_two_ranks(root: Path) -> None:
    run = root / "ranks"
    settings = tiny(run, training={"epochs": 50}, launch={"pin": True})
    training = train("demo", ranks=2, **settings)
    for record in training:
        if record.step == 2:
            processes = child_processes(training._job._process.pid)
            result = training.stop()
            break
    assert not result.is_finished and result.last_checkpoint is not None
    wait_until_ended(processes)
    assert " of 2 ranks × " in training.output
    assert isinstance(training, Training)
