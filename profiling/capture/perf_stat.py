"""`perf stat` on this process, counting only while it is told to."""

import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Sequence

SECONDS_TO_ANSWER = 10


class PerfFailedError(RuntimeError):
    """perf does not count here; the message says why, in its own words."""


class PerfStat:
    """A `perf stat` that watches all threads of this process, also those to come."""

    def __init__(self, events: Sequence[str]) -> None:
        """Start it; it does not count yet.

        Raises:
            PerfFailedError: It is not there, or may not count.
        """
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        command = [
            *("perf", "stat", "--field-separator", ",", "--event", ",".join(events)),
            *("--delay", "-1", "--control", f"fd:{commands},{answers}"),
            *("--log-fd", str(self._output.fileno()), "--pid", str(os.getpid())),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(commands, answers, self._output.fileno()),
                start_new_session=True,  # Ctrl-C is the training's
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            self._let_go()
            raise PerfFailedError(f"perf: cannot be started: {error.strerror}") from error
        finally:
            os.close(commands)
            os.close(answers)
        self._tell("disable")  # which it is; the answer says that it works

    def count(self, *, on: bool) -> None:
        """Begin or cease to count; returns when it has.

        Raises:
            PerfFailedError: It has ended.
        """
        self._tell("enable" if on else "disable")

    def end(self) -> str:
        """End it; returns its output, a line of comma-separated fields for each event."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(SECONDS_TO_ANSWER)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        self._let_go()
        return output

    def _tell(self, word: str) -> None:
        try:
            os.write(self._commands, f"{word}\n".encode())
            ready, _, _ = select.select([self._answers], [], [], SECONDS_TO_ANSWER)
            answer = os.read(self._answers, 100) if ready else b""
        except OSError:
            answer = b""
        if not answer.startswith(b"ack"):
            problem = self._problem()
            self.end()
            raise PerfFailedError(problem)

    def _problem(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        words = [line.strip() for line in lines if line.strip() not in ("", "Error:")]
        return f"perf: {words[0] if words else 'does not answer'}"

    def _let_go(self) -> None:
        for descriptor in (self._commands, self._answers):
            os.close(descriptor)
        self._output.close()
        self._errors.close()
