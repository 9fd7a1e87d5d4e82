"""A training in a process of its own, or its ranks: started, followed by its metrics, and stopped.

A process of its own, since cores, memory policy and allocator must be set before torch is loaded,
and because a notebook should survive whatever happens to a training.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from common.errors import (
    BAD_INPUT,
    FINISHED,
    LOSS_NOT_FINITE,
    STOPPED_BY_SIGNAL,
    STOPPED_TOO_EARLY,
    InputError,
    NonFiniteLossError,
    WorkerDiedError,
    interrupted_by_sigterm,
)
from common.files import create_anew
from common.processes import (
    SECONDS_TO_SAVE,
    exit_reason,
    start_with_caller,
    stop_process,
)
from common.program import module_environment, train_command
from retinanet.metrics_reader import MetricsReader


class TrainingJob:
    """A training that runs in another process, and ends when this one does, however that ends.

    `options` are those of `retinanet train`, `launcher` the beginning of the command, such as that
    of `retinanet launch run`. What it prints is written to the file `log`. Leaving the context
    stops it.
    """

    def __init__(
        self, run: Path, options: Sequence[str], *, log: Path, launcher: Sequence[str] = ()
    ) -> None:
        self.run = run
        self._log = log
        self._metrics = MetricsReader(run / "metrics.jsonl")
        # Jupyter sets FORCE_COLOR, by which a progress bar would be drawn into the file.
        environment = {**module_environment(), **self._metrics.environment}
        environment.pop("FORCE_COLOR", None)
        # A file and not a pipe, which would block the training when it is full.
        with create_anew(log) as output:
            self._process, self._alive = start_with_caller(
                [*launcher, *train_command(), *options],
                environment=environment,
                stdout=output,
                stderr=output,
            )
        self._printed: str | None = None  # None: it runs

    def __enter__(self) -> Self:
        """Return the job."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the training if it still runs."""
        self.stop()

    @property
    def output(self) -> str:
        """What the training has printed so far, such as the table of each evaluation."""
        if self._printed is not None:
            return self._printed
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def is_finished(self) -> bool:
        """Whether it has ended by itself, with all its epochs or at its target."""
        return self._process.returncode == FINISHED

    def follow(self) -> Iterator[dict[str, Any]]:
        """Yield the records of `metrics.jsonl` as they are written, until the training ends."""
        return self._metrics.follow(self._process)

    def stop(self) -> None:
        """Stop the training after its step, with a checkpoint, unless it has ended; close the log.

        Ctrl-C ends it without a checkpoint.
        """
        try:
            stop_process(self._process, patience_s=SECONDS_TO_SAVE)
        finally:
            if self._printed is None:
                self._printed = self.output
                os.close(self._alive)

    def raise_failure(self) -> None:
        """Return if the training, which has ended, was finished or stopped.

        Raises:
            InputError: The settings do not fit the data or the machine; as of `retinanet train`.
            NonFiniteLossError: The loss was infinite or NaN.
            WorkerDiedError: The process ended otherwise, such as by a lack of memory.
        """
        status = self._process.returncode
        # SIGTERM before the run handles signals.
        if status in (FINISHED, STOPPED_BY_SIGNAL, STOPPED_TOO_EARLY, -15):
            return
        lines = [line for line in self.output.splitlines() if line.startswith("error: ")]
        message = lines[-1].removeprefix("error: ") if lines else ""
        if status == BAD_INPUT and message:
            raise InputError(message)
        if status == LOSS_NOT_FINITE and message:
            raise NonFiniteLossError(message)
        raise WorkerDiedError(f"{self.run}: {message or exit_reason(status, self.output)}")


def train_until(
    is_enough: Callable[[Mapping[str, Any]], object],
    run: Path,
    options: Sequence[str],
    *,
    launcher: Sequence[str] = (),
) -> None:
    """Train until the end, or until `is_enough` is true of a record; for the main thread.

    Ctrl-C and SIGTERM let the training write a checkpoint first. Its output is in a file beside the
    folder of the run. Raises what `TrainingJob.raise_failure` does, and KeyboardInterrupt if the
    training was stopped by a signal of its own, such as from a batch system.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    folder = (f"run.root={run.parent}", f"run.name={run.name}")
    log = run.with_name(f"{run.name}.log")
    with (
        interrupted_by_sigterm(),
        TrainingJob(run, [*options, *folder], log=log, launcher=launcher) as job,
    ):
        try:
            is_stopped = any(is_enough(record) for record in job.follow())
        except KeyboardInterrupt:
            note = f"{run}: stopping; the training finishes its step and writes a checkpoint"
            print(note, file=sys.stderr, flush=True)
            raise
    job.raise_failure()
    if not (is_stopped or job.is_finished):
        raise KeyboardInterrupt
