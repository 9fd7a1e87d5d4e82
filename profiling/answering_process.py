"""A Python module in a process of its own, which is asked in lines and answers in JSON."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[1]


class AnsweringProcess:
    """The process, alive until `close`."""

    def __init__(
        self,
        module: str,
        specification: Mapping[str, Any],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m module SPECIFICATION`; `environment` comes beside this process's own."""
        self._errors: IO[str] = tempfile.TemporaryFile(  # noqa: SIM115 (closed with the process)
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(specification)],
            cwd=REPOSITORY,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            process_group=0,  # Ctrl-C reaches the caller alone, which then ends the process
        )
        self.pid = self._process.pid

    def ask(self, question: str) -> None:
        """Put a question, a line; that nobody is there to read it is told by `answer`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """The next answer; None where there will be none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def cause_of_death(self) -> str:
        """Why it ended, in a few words: the signal, or its last line of errors."""
        status = self._process.wait()
        if status < 0:
            name = signal.Signals(-status).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        return f"its process ended with status {status}: {self.last_words()}"

    def last_words(self) -> str:
        """The last line of its errors, once it has ended."""
        self._process.wait()
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines()[-1:] or ["it said nothing"])[0]

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                with contextlib.suppress(BrokenPipeError):  # a question that nobody read
                    stream.close()
