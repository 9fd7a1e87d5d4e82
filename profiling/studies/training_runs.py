"""One probe run: `train.py` at a global batch size, until a target or the end of its epochs.

TODO-DOC Trainings in jobs of their own: for some seconds of steps, or to the end.
"""

import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.console import Advance
from common.errors import FINISHED, STOPPED_BY_SIGNAL, InputError
from common.processes import REPOSITORY, running
from profiling.bench.job import JobFailedError
from profiling.studies.async_groups.search import Setting, points_of
from profiling.studies.tune.measurements import Evaluated, ProbeRun, Probes
from retinanet.training.metrics_file import read_metrics

SECONDS_FOR_A_CHECKPOINT = 600.0
"""Until a training that was asked to stop is killed: its step comes first."""
PROGRESS = "epoch "
"""Begins the lines of `train.py` that are passed on."""


@dataclass(frozen=True, kw_only=True)
class ProbedTraining:
    """What all probe runs train, and where."""

    config: str
    overrides: tuple[str, ...]
    local_batch: int
    """Images at once, as the configuration has them; larger batches are made of several."""
    folder: Path
    """Of the runs."""


def run_probe(
    training: ProbedTraining,
    probes: Probes,
    *,
    batch_size: int,
    seed: int,
    say: Callable[[str], None],
) -> ProbeRun:
    """Train, from where an earlier command has stopped; returns what the evaluations said.

    Args:
        training: What.
        probes: Until which target, with which learning rate.
        batch_size: Images of a step.
        seed: Of weights, order and augmentation.
        say: Told the lines of its progress.

    Raises:
        JobFailedError: It did not end well; it has said why.
        KeyboardInterrupt: It was stopped, after writing a checkpoint.
    """
    from retinanet.training.metrics_file import read_metrics  # noqa: PLC0415

    name = f"batch-{batch_size}-seed-{seed}"
    words = probe_words(training, probes, batch_size=batch_size, seed=seed, name=name)
    began = time.monotonic()
    run_training(words, say=say)
    evaluations = evaluations_in(read_metrics(training.folder / name / "metrics.jsonl"))
    return ProbeRun(
        batch_size=batch_size,
        seed=seed,
        evaluations=evaluations,
        is_over=all(one.score < probes.target_map for one in evaluations),
        seconds=time.monotonic() - began,
    )


def probe_words(
    training: ProbedTraining, probes: Probes, *, batch_size: int, seed: int, name: str
) -> list[str]:
    """The command; on few cores a large batch is made of small ones, one after another."""
    local = math.gcd(training.local_batch, batch_size)
    return [
        *(sys.executable, str(REPOSITORY / "train.py"), "--config", training.config),
        *("--auto-resume", *training.overrides),
        f"run.root={training.folder}",
        f"run.name={name}",
        f"run.seed={seed}",
        f"training.batch_size={local}",
        f"training.gradient_accumulation={batch_size // local}",
        f"training.learning_rate={probes.rule.scaled(batch_size):.3g}",
        f"training.target_map={probes.target_map:g}",
        "evaluation.every=1",
        "evaluation.pictures=0",
        "checkpoint.keep=1",
    ]


def run_training(words: Sequence[str], *, say: Callable[[str], None]) -> None:
    """Run `train.py`; Ctrl-C and SIGTERM let it write a checkpoint first.

    Raises:
        JobFailedError: It did not end well; it has said why.
        KeyboardInterrupt: It was stopped.
    """
    with running(words, patience_s=SECONDS_FOR_A_CHECKPOINT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(PROGRESS):
                    say(line.rstrip())
        except KeyboardInterrupt:
            say("stopping: the training ends its step and writes a checkpoint")
            raise
        code = process.wait()
    if code == STOPPED_BY_SIGNAL:
        raise KeyboardInterrupt
    if code != FINISHED:
        raise JobFailedError(code if code > 0 else 128 - code)


def evaluations_in(records: Sequence[dict[str, Any]]) -> tuple[Evaluated, ...]:
    """Those among a run's records; a metric that does not exist counts as none."""
    return tuple(
        Evaluated(epoch=float(one["epoch"]), score=float(one["map"] or 0.0))
        for one in records
        if one["kind"] == "evaluation"
    )


SECONDS_BETWEEN_LOOKS = 0.5
FOR_PROBES = (
    "training.schedule=constant",
    "training.target_map=null",
    "training.epochs=100000",
    "training.max_steps=null",
    "evaluation.every=100000",
    "evaluation.pictures=0",
    "checkpoint.keep=1",
)
"""They are stopped when their time is over, long before a learning rate that falls would."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """How trainings are started."""

    ranks: int
    config: str
    overrides: tuple[str, ...]
    learning_rate: float
    """The configuration's."""
    where: tuple[str, ...]
    """Words of `python -m launch run` that say on which hosts, by which mpirun."""
    folder: Path
    """Of all runs."""


def cold_start(job: Job, *, seconds: float, advance: Advance) -> int:
    """Train synchronously from the start for some seconds of steps; returns the steps.

    Goes on where it was stopped.

    Raises:
        InputError: It did not end well.
    """
    words = (*FOR_PROBES, "distributed.groups=1", "--auto-resume")
    run_for(job, "cold-start", words, seconds=seconds, after_step=0, advance=advance)
    return last_step(job.folder / "cold-start")


def probe(
    job: Job, setting: Setting, *, seconds: float, after_step: int, advance: Advance
) -> list[dict[str, Any]]:
    """Train on from the cold start for some seconds of steps; returns the steps' records.

    Raises:
        InputError: It did not end well.
    """
    run = job.folder / setting.name
    shutil.rmtree(run, ignore_errors=True)
    copy_of_cold_start(job, setting.name)
    words = (*FOR_PROBES, *words_of(setting, job.learning_rate), "--resume")
    try:
        run_for(job, setting.name, words, seconds=seconds, after_step=after_step, advance=advance)
        return [
            one for one in records_of(run) if one["kind"] == "step" and one["step"] > after_step
        ]
    finally:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)  # half a gigabyte each


def whole(job: Job, setting: Setting, *, advance: Advance) -> list[dict[str, Any]]:
    """Train to the end of the configuration; returns the run's records.

    Groups begin where the cold start has ended, whose steps are theirs too: it is the first part
    of such a training. Goes on where it was stopped; what has finished is not run again.

    Raises:
        InputError: It did not end well.
    """
    name = f"whole-{setting.name}"
    if setting.groups > 1 and not (job.folder / name).exists():
        copy_of_cold_start(job, name)
    words = (
        *words_of(setting, job.learning_rate),
        "evaluation.pictures=0",
        "checkpoint.keep=1",
        "--auto-resume",
    )
    started = start(job, name, words)
    code = followed(started, lambda: show(job.folder / name, advance))
    require_code(code, FINISHED, job.folder / name)
    return records_of(job.folder / name)


def copy_of_cold_start(job: Job, name: str) -> None:
    """Make it a run of this name, which then goes on from there; whole or not at all."""
    begun = job.folder / f"{name}.begun"
    shutil.rmtree(begun, ignore_errors=True)
    shutil.copytree(job.folder / "cold-start", begun, symlinks=True)
    begun.rename(job.folder / name)


def words_of(setting: Setting, learning_rate: float) -> tuple[str, ...]:
    """What `train.py` is told, of the configuration's learning rate."""
    return (
        f"distributed.groups={setting.groups}",
        f"training.beta1={setting.beta1:g}",
        f"training.learning_rate={learning_rate * setting.rate:g}",
    )


def run_for(
    job: Job,
    name: str,
    words: Sequence[str],
    *,
    seconds: float,
    after_step: int,
    advance: Advance,
) -> None:
    """Start or go on with a run, and have it stop after so many seconds of steps."""
    run, done = job.folder / name, 0.0
    if run.exists() and seconds_done(run, after_step) >= seconds:
        return
    started = start(job, name, words)

    def look() -> None:
        nonlocal done
        found = seconds_done(run, after_step)
        advance(round(min(found, seconds)), "")
        if found >= seconds > done:
            started.send_signal(signal.SIGTERM)
        done = found

    require_code(followed(started, look), STOPPED_BY_SIGNAL, run)


def start(job: Job, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a run; what it prints goes to a file beside its folder."""
    command = [sys.executable, "-m", "launch", "run", "--np", str(job.ranks), *job.where]
    command += ["--", "train.py", "--config", job.config, *job.overrides]
    command += [f"run.root={job.folder}", f"run.name={name}", *words]
    with log_of(job.folder / name).open("wb") as log:
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)


def followed(started: subprocess.Popen[bytes], look: Callable[[], None]) -> int:
    """Look now and then until it has ended; returns its exit code. Ctrl-C ends it as well."""
    try:
        while started.poll() is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            look()
    except BaseException:
        started.terminate()  # it writes a checkpoint, unless Ctrl-C has told it so already
        started.wait()
        raise
    return started.returncode


def require_code(code: int, wanted: int, run: Path) -> None:
    """Refuse another end of a run.

    Raises:
        InputError: With the run's own last line.
    """
    if code != wanted:
        lines = log_of(run).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("error: ")] or lines[-1:]
        raise InputError(f"{run}: ended with status {code}: {errors[0] if errors else 'no word'}")


def log_of(run: Path) -> Path:
    """Where what a run prints goes."""
    return run.with_name(f"{run.name}.log")


def show(run: Path, advance: Advance) -> None:
    """Say how far a whole run has come, in epochs."""
    records = records_of(run)
    evaluated = evaluations(records)
    note = f"mAP {max(one['map'] or 0 for one in evaluated):.3f}" if evaluated else ""
    advance(int(records[-1]["epoch"]) if records else 0, note)


def seconds_done(run: Path, after_step: int) -> float:
    """Of steps."""
    points = points_of(records_of(run), after_step=after_step)
    return points[-1].seconds if points else 0.0


def last_step(run: Path) -> int:
    """Of a run that has stopped, and so of its checkpoint."""
    return max(one["step"] for one in records_of(run) if one["kind"] == "step")


def records_of(run: Path) -> list[dict[str, Any]]:
    """Of its metrics, as far as they are written; none before the first."""
    return read_metrics(run / "metrics.jsonl")


def evaluations(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a run, in order."""
    return [one for one in records if one["kind"] == "evaluation"]
