"""Interrupted measurements and probe runs: the same command continues."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import BAD_INPUT, FINISHED, INTERRUPTED
from launch.__main__ import main
from profiling.bench.job import JobFailedError, MeasuredJob, RankSteps
from profiling.studies.tune import gather, measure
from profiling.studies.tune.measurements import (
    HostPeaks,
    Measurements,
    PartialMeasurement,
    read_measurements,
    write_measurements,
)
from tests.launch.ranks import MPIRUN, Ended, ended
from tests.profiling.studies.tune.samples import measurements
from tests.support.commands import RunHere, start_program
from tests.support.fast_precision import FAST_PRECISION
from tests.support.rank_steps import rank_steps

SMALL = ("data.image_size=64", f"engine.precision={FAST_PRECISION}")


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start the planner on one core, where only one shape has to be measured."""
    core = min(os.sched_getaffinity(0))
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-m", "launch", "tune"]
    return start_program(*command, "--mpirun", MPIRUN, *map(str, arguments), start_new_session=True)


def interrupted(job: subprocess.Popen[str], *, when: Callable[[], bool]) -> Ended:
    """Send Ctrl-C as soon as a condition holds."""
    end = time.monotonic() + 120
    while not when():
        assert time.monotonic() < end and job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    return ended(job)


@pytest.fixture
def fake_jobs(monkeypatch: pytest.MonkeyPatch) -> list[MeasuredJob]:
    """Replace all measurements by fixed numbers; collects the jobs, and interrupts the third."""
    jobs: list[MeasuredJob] = []

    def measure_ranks(job: MeasuredJob, **_: Any) -> list[RankSteps]:
        jobs.append(job)
        if len(jobs) == 3:
            raise KeyboardInterrupt
        seconds = [1.0 + job.ranks] * 2
        return [rank_steps(rank, seconds, held_back=seconds) for rank in range(job.ranks)]

    monkeypatch.setattr("profiling.studies.rounds.measure_ranks", measure_ranks)
    for name in ("evaluation_seconds", "metric_seconds", "update_seconds"):
        monkeypatch.setattr(measure, name, lambda _: 1.0)
    peaks = HostPeaks(core_gflops=450.0, memory_gb_per_s=25.0)
    monkeypatch.setattr(measure, "host_peaks", lambda _: peaks)
    return jobs


def test_interrupted_measurement_continues_with_the_missing_jobs(
    run_here: RunHere, fake_jobs: list[MeasuredJob], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    stopped = run_here(main, "tune", "--plan", plan, *SMALL)
    assert stopped.returncode == INTERRUPTED
    partial = read_measurements(plan)
    assert isinstance(partial, PartialMeasurement) and partial.done == 2
    jobs = measure.ROUNDS * len(partial.measured)
    assert f"{plan} has 2 of {jobs} jobs" in stopped.stdout
    other = run_here(main, "tune", "--plan", plan, "data.image_size=96")
    assert other.returncode == BAD_INPUT and "data.image_size=64" in other.stderr
    done = run_here(main, "tune", "--plan", plan, *SMALL)
    assert done.returncode == FINISHED, done.stderr
    assert len(fake_jobs) == jobs + 1  # only the interrupted one is repeated
    assert f"continuing: {plan}, 2 of {jobs} jobs" in done.stdout and "\nbest: " in done.stdout
    complete = read_measurements(plan)
    assert isinstance(complete, Measurements) and complete.update_seconds == 1.0
    assert complete.peaks == HostPeaks(core_gflops=450.0, memory_gb_per_s=25.0)
    again = run_here(main, "tune", "--plan", plan)
    assert again.returncode == FINISHED and len(fake_jobs) == jobs + 1


def test_failed_job_gives_its_exit_status(
    run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise JobFailedError(7)

    monkeypatch.setattr("profiling.studies.rounds.measure_ranks", fail)
    assert run_here(main, "tune", *SMALL).returncode == 7


def test_probe_runs_are_trained_and_stored_one_by_one(
    run_here: RunHere, probed_plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[list[str]] = []

    def train(see: Callable[[dict[str, Any]], object], run: Path, options: list[str]) -> None:
        trained.append(options)
        if len(trained) == 2:
            raise KeyboardInterrupt
        record = {"kind": "evaluation", "epoch": 2, "map": 0.5}
        assert not see(record)
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")

    monkeypatch.setattr(gather, "train_until", train)
    probes = ("--probe", "2,4", "--probe-seeds", "1", "--probe-target", "0.25")
    options = ("tune", "--plan", probed_plan, *probes)
    stopped = run_here(main, *options)
    assert stopped.returncode == INTERRUPTED
    assert "global batch 2, seed 0: 1.00 epochs" in stopped.stdout
    assert "\n  epoch 2: mAP 0.500\n" in stopped.stdout
    stored = read_measurements(probed_plan)
    assert isinstance(stored, Measurements) and stored.probes is not None
    assert [run.batch_size for run in stored.probes.runs] == [2]
    done = run_here(main, *options)
    assert done.returncode == FINISHED, done.stderr
    assert len(trained) == 3 and "training.gradient_accumulation=2" in trained[2]
    assert "\nforecast to mAP 0.25 " in done.stdout


@pytest.fixture
def probed_plan(tmp_path: Path) -> Path:
    """Write a plan of a measured host and a small training without probe runs."""
    training = ("training.batch_size=2", "training.epochs=2")
    overrides = (*SMALL, "data.scenes={train: 12, validation: 2}", *training)
    file = tmp_path / "plan.json"
    small = replace(measurements(), data="demo.yaml", config="demo.yaml", overrides=overrides)
    write_measurements(file, small)
    return file


def step_numbers(run: Path) -> list[int]:
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["step"] for line in lines if '"kind": "step"' in line]


@pytest.mark.exhaustive
def test_real_probe_run_resumes_from_its_checkpoint(probed_plan: Path, tmp_path: Path) -> None:
    run = tmp_path / "plan-probes" / "batch-2-seed-0"
    probes = ("--probe", "2,4", "--probe-seeds", "1", "--probe-target", "0.9")
    process = start("--plan", probed_plan, *probes)
    stopped = interrupted(process, when=lambda: len(step_numbers(run)) >= 2)
    assert stopped.code == INTERRUPTED, stopped.errors
    assert "stopping; the training finishes its step" in stopped.errors
    assert " ".join(stopped.output.split()).endswith(
        f"stopped: {run.parent} has the trainings; repeat the command to continue"
    )
    trained = step_numbers(run)
    assert (run / "checkpoints" / "last").exists() and len(trained) < 12

    done = ended(start("--plan", probed_plan, *probes), timeout=240)
    assert done.code == BAD_INPUT
    assert "--probe-target 0.9: 2 of 2 probe runs did not reach it by epoch 2" in done.errors
    assert step_numbers(run)[: len(trained)] == trained  # none was repeated
    stored = read_measurements(probed_plan)
    assert isinstance(stored, Measurements) and stored.probes is not None
    counts = [(run.batch_size, len(run.evaluations)) for run in stored.probes.runs]
    assert counts == [(2, 2), (4, 2)]
    settings = (run.parent / "batch-4-seed-0" / "config.yaml").read_text()
    assert "gradient_accumulation: 2" in settings and "learning_rate: 0.000424" in settings
