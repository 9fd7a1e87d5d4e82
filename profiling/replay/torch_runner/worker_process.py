"""The caller's side of the worker: started when needed, started again after it has died."""

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launch.placement.share import Share
from profiling.answering_process import AnsweringProcess
from profiling.onednn_log.problem import Problem
from retinanet.errors import InputError

MODULE = "profiling.replay.torch_runner.worker"


class WorkerDiedError(RuntimeError):
    """The worker ended in the middle of a problem; the message says why, in one line."""


class TorchWorker:
    """A process that runs problems; leaving the context ends it."""

    def __init__(self, share: Share) -> None:
        """`share`: the cores that it computes on."""
        self.share = share
        self.notes: list[str] = []
        """What it said of its cores when it was last started."""
        self.process: AnsweringProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, problem: Problem, log: Path, *, repeats: int, cold: bool) -> dict[str, Any]:
        """Run a problem: `{"hot": 20, "cold": 20}`, or `{"why_not": "…"}`.

        Raises:
            WorkerDiedError: It did not survive that; the next call starts another.
            InputError: No worker can be started.
        """
        process = self.process or self._start()
        question = {
            "problem": asdict(problem),
            "log": str(log),
            "repeats": repeats,
            "cold": cold,
        }
        process.ask(json.dumps(question))
        answer = process.answer()
        if answer is None:
            why = process.cause_of_death()
            self.close()
            raise WorkerDiedError(why)
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def _start(self) -> AnsweringProcess:
        self.process = AnsweringProcess(MODULE, asdict(self.share))
        answer = self.process.answer()
        if answer is None:
            why = self.process.cause_of_death()
            self.close()
            raise InputError(f"problems cannot be run again through torch: {why}")
        self.notes = answer["notes"]
        return self.process
