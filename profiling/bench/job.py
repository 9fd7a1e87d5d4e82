"""A job of measured ranks, from its start by mpirun to what the ranks have measured.

TODO-DOC What the ranks of one job measured of the same steps.

TODO-DOC All-reduces of several sizes, timed by ranks under mpirun.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.processes import REPOSITORY, running
from launch.mpirun import Hosts, Mpirun, mpirun_command, search_path
from profiling.studies.tune.model import AllReduceTime

MARK = "measured-rank "
"""Begins the lines that are meant for `measure_ranks`, among what else comes from mpirun."""


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


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """One rank's counted steps."""

    rank: int
    host: str
    seconds: list[float]
    """Of each step, waiting included."""
    data_seconds: list[float]
    """Of these, waiting for data."""
    forward_seconds: list[float]
    """Of these, forward passes and losses."""
    exchange_seconds: list[float]
    """Of these, waiting for gradients after the last of its own; one rank alone has zeros."""
    held_back_seconds: list[float]
    """Of the steps between these, whose gradients stayed with their rank; empty without such."""
    images: int
    """In each step."""
    way: str
    """Which gradients take: `shared memory`, `gloo` or `ccl`; `none` for one rank alone."""
    notes: list[str]
    """What the rank has to say of its place."""


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
    with running(words, environment=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                yield json.loads(line.removeprefix(MARK))
            else:
                say(line.rstrip())
        code = process.wait()
    if code:
        raise JobFailedError(code)


def slowest(ranks: Sequence[RankSteps]) -> list[float]:
    """Seconds of each step of a job: those of its slowest rank, as all start a step together."""
    return [max(of_step) for of_step in zip(*(one.seconds for one in ranks), strict=True)]


def slowest_held_back(ranks: Sequence[RankSteps]) -> list[float]:
    """The same for steps whose gradients stayed with their rank."""
    return [max(of_step) for of_step in zip(*(one.held_back_seconds for one in ranks), strict=True)]


def exposed(ranks: Sequence[RankSteps]) -> list[float]:
    """Seconds of each step in which the exchange of gradients was all that went on.

    They are those of the rank that was ready last: the others also waited for it.
    """
    return [min(of_step) for of_step in zip(*(one.exchange_seconds for one in ranks), strict=True)]


def waited_for_data(ranks: Sequence[RankSteps]) -> list[float]:
    """Seconds of each step, of the rank that waited longest."""
    return [max(of_step) for of_step in zip(*(one.data_seconds for one in ranks), strict=True)]


@dataclass(frozen=True, kw_only=True)
class AllReduces:
    """What the ranks of one job have measured."""

    times: tuple[AllReduceTime, ...]
    """A median for each size."""
    hosts: int
    """On which the ranks ran."""
    backend: str
    """Of torch's process group."""

    @property
    def over(self) -> str:
        """What they went over, in words."""
        where = f"{self.hosts} hosts" if self.hosts > 1 else "sockets of one host"
        return f"measured over {where}, {self.backend}"


def measure_all_reduces(
    *,
    sizes: Sequence[int],
    ranks: int,
    mpirun: Mpirun,
    hosts: Hosts = (),
    say: Callable[[str], None] = print,
) -> AllReduces:
    """Time them over torch's process group, whatever way shared memory would be.

    Args:
        sizes: [bytes]
        ranks: At least 2.
        mpirun: Starts them.
        hosts: See `mpirun_command`; none: all on this one.
        say: Told what the ranks print beside.

    Raises:
        JobFailedError: A rank could not go on; it has said why.
    """
    words = [word for size in sizes for word in ("--size", str(size))]
    command = [sys.executable, "-m", "profiling.bench.all_reduce_rank", *words]
    with closing(messages_of(command, ranks=ranks, hosts=hosts, mpirun=mpirun, say=say)) as told:
        messages = list(told)
    if not messages:
        raise JobFailedError(1)
    [found] = messages
    times = tuple(
        AllReduceTime(ranks=ranks, size=int(size), seconds=seconds)
        for size, seconds in found["seconds"].items()
    )
    return AllReduces(times=times, hosts=found["hosts"], backend=found["backend"])
