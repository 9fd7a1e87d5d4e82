"""Ctrl-C in a real measurement and in a real probe run: the same command goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import BAD_INPUT, FINISHED, INTERRUPTED
from profiling.studies.tune.measurements import (
    Measurements,
    PartialMeasurement,
    read_measurements,
    write_measurements,
)
from tests.launch.ranks import MPIRUN, REPOSITORY, Ended, ended
from tests.profiling.studies.tune.by_hand import measurements
from tests.support.fast_precision import FAST_PRECISION

SMALL = ("data.image_size=64", f"engine.precision={FAST_PRECISION}")


def start(*words: str | Path) -> subprocess.Popen[str]:
    """On one core, where there is least to measure: a rank of one thread."""
    core = min(os.sched_getaffinity(0))
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-m", "launch", "tune"]
    return subprocess.Popen(
        [*command, "--mpirun", str(MPIRUN), *map(str, words)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupted(job: subprocess.Popen[str], *, when: Callable[[], bool]) -> Ended:
    """Ctrl-C as soon as there is something to keep."""
    end = time.monotonic() + 120
    while not when():
        assert time.monotonic() < end and job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    return ended(job)


def test_measurement_goes_on_where_ctrl_c_has_stopped_it_and_only_there(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    stopped = interrupted(start("--plan", plan, *SMALL), when=plan.exists)
    assert stopped.code == INTERRUPTED, stopped.errors
    begun = read_measurements(plan)
    assert isinstance(begun, PartialMeasurement) and 1 <= begun.done < 6
    assert stopped.output.splitlines()[-1] == (
        f"stopped: {plan} has {begun.done} of 6 jobs; repeat the command to continue"
    )
    assert stopped.errors == "interrupted\n"

    other = ended(start("--plan", plan, "data.image_size=96"))
    assert other.code == BAD_INPUT and other.errors.count("\n") == 1
    assert f"error: {plan}: was measured with data.image_size=64 " in other.errors

    content = json.loads(plan.read_text())
    content["environment"]["cpu"] = "another"
    moved = tmp_path / "moved.json"
    moved.write_text(json.dumps(content))
    elsewhere = ended(start("--plan", moved, *SMALL))
    assert elsewhere.code == BAD_INPUT and elsewhere.errors.count("\n") == 1
    assert f"{moved}: the measurement was started with cpu another" in elsewhere.errors

    done = ended(start("--plan", plan, *SMALL), timeout=300)
    assert done.code == FINISHED, done.errors
    assert f"continuing: {plan}, {begun.done} of 6 jobs" in done.output
    assert "\nbest: 1 host × 1 rank × 1 thread" in done.output
    assert isinstance(read_measurements(plan), Measurements)


@pytest.fixture
def probed_plan(tmp_path: Path) -> Path:
    """A host that is measured, for a training of few small scenes whose probes have not run."""
    overrides = (
        *SMALL,
        "data.scenes={train: 24, validation: 2}",
        "training.batch_size=2",
        "training.epochs=2",
    )
    file = tmp_path / "plan.json"
    small = replace(measurements(), data="demo.yaml", config="demo.yaml", overrides=overrides)
    write_measurements(file, small)
    return file


def step_times(run: Path) -> list[int]:
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["step"] for line in lines if '"kind": "step"' in line]


def test_probe_run_goes_on_from_its_checkpoint_and_is_not_trained_again(
    probed_plan: Path, tmp_path: Path
) -> None:
    run = tmp_path / "plan-probes" / "batch-2-seed-0"
    probes = ("--probe", "2,4", "--probe-seeds", "1", "--probe-target", "0.9")
    asked = start("--plan", probed_plan, *probes)
    stopped = interrupted(asked, when=lambda: len(step_times(run)) >= 2)
    assert stopped.code == INTERRUPTED, stopped.errors
    assert stopped.output.splitlines()[-1] == (
        f"stopped: {run.parent} has the trainings; repeat the command to continue"
    )
    trained = step_times(run)
    assert (run / "checkpoints" / "last").exists() and len(trained) < 24

    untold = ended(start("--plan", probed_plan))
    assert untold.code == BAD_INPUT
    assert "2 of 2 probe runs have not trained to mAP 0.9; give --probe 2,4" in untold.errors

    done = ended(start("--plan", probed_plan, *probes), timeout=240)
    assert done.code == BAD_INPUT
    assert "--probe-target 0.9: 2 of 2 probe runs did not reach it by epoch 2" in done.errors
    assert step_times(run)[: len(trained)] == trained  # none was made again
    kept = read_measurements(probed_plan)
    assert isinstance(kept, Measurements) and kept.probes is not None
    assert [(one.batch_size, len(one.evaluations)) for one in kept.probes.runs] == [(2, 2), (4, 2)]
    settings = (run.parent / "batch-4-seed-0" / "config.yaml").read_text()
    assert "gradient_accumulation: 2" in settings and "learning_rate: 0.000424" in settings

    again = ended(start("--plan", probed_plan))
    assert again.code == BAD_INPUT and "probe 1" not in again.output
