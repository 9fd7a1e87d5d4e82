"""The caller's side of the worker: started when needed, started again after it has died."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from launch.placement.share import Share
from profiling.onednn_log.problem import Problem
from retinanet.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[3]
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
        self.process: subprocess.Popen[str] | None = None
        self.errors: IO[str] | None = None

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
        assert process.stdin is not None
        question = {
            "problem": asdict(problem),
            "log": str(log),
            "repeats": repeats,
            "cold": cold,
        }
        with contextlib.suppress(BrokenPipeError):  # it is dead, which reading tells
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        answer = self._answer()
        if answer is None:
            why = self._cause_of_death()
            self.close()
            raise WorkerDiedError(why)
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a question that nobody read
                    stream.close()
        self.process = self.errors = None

    def _start(self) -> subprocess.Popen[str]:
        self.errors = tempfile.TemporaryFile(  # noqa: SIM115 (closed with the worker)
            "w+", encoding="utf-8", errors="replace"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE, json.dumps(asdict(self.share))],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            process_group=0,  # Ctrl-C reaches the caller alone, which then ends the worker
        )
        answer = self._answer()
        if answer is None:
            why = self._cause_of_death()
            self.close()
            raise InputError(f"problems cannot be run again through torch: {why}")
        self.notes = answer["notes"]
        return self.process

    def _answer(self) -> dict[str, Any] | None:
        """The next line; None where there will be none."""
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _cause_of_death(self) -> str:
        assert self.process is not None and self.errors is not None
        status = self.process.wait()
        if status < 0:
            name = signal.Signals(-status).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        self.errors.seek(0)
        last_words = self.errors.read().strip().splitlines()[-1:] or ["it said nothing"]
        return f"its process ended with status {status}: {last_words[0]}"
