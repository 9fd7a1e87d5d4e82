"""A job of measured ranks, from its start by mpirun to what the ranks have measured."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.start.mpirun import Mpirun, search_path
from launch.start.mpirun_command import Hosts, mpirun_command
from profiling.bench.rank_steps import RankSteps

MARK = "measured-rank "
"""Begins the lines that are meant for `measure_ranks`, among what else comes from mpirun."""
REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS_TO_END = 10.0
"""Until an mpirun that was asked to end its ranks is ended itself."""


class JobFailedError(Exception):
    """A job could not go on; its ranks have said why, on stderr."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit status {code}")
        self.code = code


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """What `measure_ranks` starts."""

    ranks: int
    hosts: Hosts = ()
    """See `mpirun_command`."""
    config: str
    overrides: tuple[str, ...]
    warm_up: int
    steps: int
    """That count, after the warm-up."""
    alternate: bool
    """Whether each counted step is followed by one whose gradients stay with their rank."""
    scenes: Path
    """Folder for drawn scenes."""
    own_model: bool = False
    """Whether the configuration's model trains, and not MLPerf's."""

    @property
    def all_steps(self) -> int:
        """Those that do not count included."""
        return self.warm_up + self.steps * (2 if self.alternate and self.ranks > 1 else 1)

    @property
    def command(self) -> list[str]:
        """What each rank runs."""
        numbers = ["--warm-up", str(self.warm_up), "--steps", str(self.steps)]
        flags = ["--alternate"] if self.alternate else []
        flags += ["--own-model"] if self.own_model else []
        program = [sys.executable, "-m", "profiling.bench.measured_rank", "--config", self.config]
        return [*program, *numbers, *flags, "--scenes", str(self.scenes), *self.overrides]


def measure_ranks(
    job: MeasuredJob,
    *,
    mpirun: Mpirun,
    advance: Callable[[int], None],
    say: Callable[[str], None],
) -> list[RankSteps]:
    """Run a job to its end; if this is interrupted, the job ends before.

    Args:
        job: What to measure.
        mpirun: Starts it.
        advance: Told the number of steps done.
        say: Told each line that the ranks print beside.

    Raises:
        JobFailedError: It did not end well.
    """
    found: list[RankSteps] = []
    told = messages_of(job.command, ranks=job.ranks, hosts=job.hosts, mpirun=mpirun, say=say)
    with closing(told):
        for message in told:
            if "step" in message:
                advance(message["step"])
            else:
                found = [RankSteps(**one) for one in message["ranks"]]
    if not found:
        raise JobFailedError(1)
    return found


def messages_of(
    command: Sequence[str],
    *,
    ranks: int,
    hosts: Hosts,
    mpirun: Mpirun,
    say: Callable[[str], None],
) -> Generator[dict[str, Any]]:
    """What ranks of a program tell after `MARK`, until they have ended; closing it ends them.

    Args:
        command: What each rank runs.
        ranks: How many, over all hosts.
        hosts: See `mpirun_command`.
        mpirun: Starts them.
        say: Told each line that they print beside.

    Raises:
        JobFailedError: They did not end well.
    """
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(REPOSITORY), environment.get("PYTHONPATH", "")])
    )
    environment["PATH"] = search_path(mpirun.path, environment)
    words = mpirun_command(
        mpirun,
        command,
        ranks=ranks,
        hosts=hosts,
        environment=environment,
        is_root=os.geteuid() == 0,
        is_terminal=False,
    )
    with running(words, environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                yield json.loads(line.removeprefix(MARK))
            else:
                say(line.rstrip())
        code = process.wait()
    if code:
        raise JobFailedError(code)


@contextmanager
def running(
    words: Sequence[str], environment: dict[str, str], *, patience_s: float = SECONDS_TO_END
) -> Iterator[subprocess.Popen[str]]:
    """A command while the context lasts; Ctrl-C and SIGTERM end it before they end this process.

    It has a process group of its own: a terminal's Ctrl-C would else reach it as well. It is killed
    when it takes longer than `patience_s` to end, or at a second Ctrl-C.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
        try:
            yield process
        finally:
            end(process, patience_s=patience_s)
    finally:
        signal.signal(signal.SIGTERM, previous)


def end(process: subprocess.Popen[str], *, patience_s: float) -> None:
    """Have a command that still runs, such as mpirun, end its ranks and itself."""
    if process.poll() is None:
        process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
        finally:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
