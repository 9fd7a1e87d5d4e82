"""The benchmark's side of a worker process."""

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.answering_process import AnsweringProcess
from profiling.bench.contestant import Contestant
from profiling.bench.run import Run
from profiling.bench.workload import Workload
from retinanet.errors import InputError


class WorkerDiedError(RuntimeError):
    """A worker ended before it answered; the message is one line with its name and why."""


def contestant_worker(contestant: Contestant, workload: Workload) -> "Worker":
    """Start a contestant's worker and wait until it is prepared.

    Raises:
        WorkerDiedError: It could not be prepared.
        InputError: It asks for what is not here.
    """
    specification = {
        "recipe": contestant.recipe,
        "allocator": contestant.allocator,
        "memory": contestant.memory,
        "pinned": contestant.pinned,
        "options": dict(contestant.options),
        "workload": dataclasses.asdict(workload),
    }
    return Worker(
        contestant.name,
        module="profiling.bench.worker",
        specification=specification,
        environment=contestant.environment,
        cache_variable=contestant.cache_variable,
    )


class Worker:
    """A process that `profiling.bench.serve` runs in, alive until `close`."""

    def __init__(
        self,
        name: str,
        *,
        module: str,
        specification: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        cache_variable: str | None = None,
    ) -> None:
        """Start `module`, which calls `serve`, and wait until it is prepared.

        `environment`: variables beside those of this process; `cache_variable`: one more, which
        names a folder that `close` removes. `name` is for messages.

        Raises:
            WorkerDiedError: It could not be prepared.
            InputError: It asks for what is not here.
        """
        self.name = name
        self.rss_mb = 0.0
        """Resident memory after its last run. [10⁶ bytes]"""
        self._cache = tempfile.TemporaryDirectory() if cache_variable else None
        variables = dict(environment or {})
        if cache_variable and self._cache:
            variables[cache_variable] = self._cache.name
        self.process = AnsweringProcess(module, specification, environment=variables)
        try:
            self.facts: dict[str, Any] = self._answer()["facts"]
        except BaseException:
            self.close()
            raise

    def run(self) -> Run:
        """Let it run once while nothing else of the benchmark runs.

        Raises:
            WorkerDiedError: It did not come back.
        """
        run = Run(**self.ask("run"))
        self.rss_mb = run.rss_mb
        return run

    def ask(self, question: str) -> dict[str, Any]:
        """Put one of the worker's questions; wait for the answer, and until it is idle again.

        Raises:
            WorkerDiedError: It did not come back.
            InputError: It asks for what is not here.
        """
        self.process.ask(question)
        answer = self._answer()
        self._wait_until_idle()
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.process.close()
        if self._cache:
            self._cache.cleanup()

    def _answer(self) -> dict[str, Any]:
        answer = self.process.answer()
        if answer is None:
            raise WorkerDiedError(f"{self.name}: {self.process.cause_of_death()}")
        if "error" in answer and answer["is_input"]:
            raise InputError(answer["error"])
        if "error" in answer:
            raise WorkerDiedError(f"{self.name}: {answer['error']}")
        return answer

    def _wait_until_idle(self, *, patience: float = 2.0) -> None:
        """Threads that spin for a while after their work would slow the next contestant down."""
        end = time.monotonic() + patience
        before = self._cpu_ticks()
        while time.monotonic() < end:
            time.sleep(0.05)  # five of the kernel's ticks
            now = self._cpu_ticks()
            if now == before:
                return
            before = now

    def _cpu_ticks(self) -> int:
        """Processor time used so far, in the kernel's ticks of 10 ms."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
