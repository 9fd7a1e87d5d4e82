"""Jobs of ranks that measure, from their start by mpirun to what the ranks have measured.

A job times training steps (`measure_ranks`) or exchanges of several numbers of gradients
(`measure_exchanges`). Its ranks run `profiling.bench.measured_rank`.
"""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from common.processes import running
from common.program import module_command, module_environment
from launch.mpirun import Hosts, Mpirun, mpirun_command, search_path
from retinanet.config import Config

MODULE = "profiling.bench.measured_rank"  # The program of each rank
MARK = "measured-rank "  # Begins the lines for `run_ranks`, among what else mpirun passes on


class JobFailedError(SystemExit):
    """A job failed; it ends the command with its status, as its ranks have printed the reason."""

    code: int

    def __str__(self) -> str:
        return f"exit status {self.code}"


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """A job of ranks, each of which gets it as JSON."""

    ranks: int
    hosts: Hosts = ()  # See `mpirun_command`
    config: str
    overrides: tuple[str, ...]
    warm_up: int
    steps: int  # Counted ones, after the warm-up
    alternate: bool
    """Whether each counted step is followed by one without gradient exchange."""
    scenes: Path  # Folder for synthetic data
    own_model: bool = False  # Whether the configuration's model trains, and not MLPerf's
    exchanges: tuple[int, ...] = ()
    """Numbers of gradients whose exchange is timed, all at once, in place of steps."""

    @property
    def all_steps(self) -> int:
        """Return the number of steps, including those that are not counted."""
        # One rank has no exchange, and therefore no steps without it.
        return self.warm_up + self.steps * (2 if self.alternate and self.ranks > 1 else 1)

    @property
    def command(self) -> list[str]:
        """Return the command of each rank."""
        return [*module_command(MODULE), TypeAdapter(MeasuredJob).dump_json(self).decode()]


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """One rank's counted steps."""

    rank: int
    host: str
    seconds: list[float]  # Time of each step, waiting included
    data_seconds: list[float]  # Waiting for data, a part of `seconds`
    forward_seconds: list[float]  # Forward passes and losses, a part of `seconds`
    exchange_seconds: list[float]
    """Waiting for gradients after its own last one, a part of `seconds`; 0 for one rank."""
    held_back_seconds: list[float]
    """Time of the steps in between, without gradient exchange; may be empty."""
    images: int  # In each step
    way: str  # Gradient exchange: `shared memory`, `gloo` or `ccl`; `none` for one rank
    notes: list[str]  # Notes on the rank's placement


def measure_ranks(
    job: MeasuredJob,
    *,
    mpirun: Mpirun,
    advance: Callable[[int], None],
    print_line: Callable[[str], None],
) -> list[RankSteps]:
    """Run a job to its end; if this process is interrupted, the job is ended first.

    `advance` receives the number of steps done, `print_line` each other line of the ranks.

    Raises:
        JobFailedError: It failed.
    """
    measured = run_ranks(job, mpirun=mpirun, print_line=print_line, advance=advance)
    return [RankSteps(**rank) for rank in measured["ranks"]]


def run_ranks(
    job: MeasuredJob,
    *,
    mpirun: Mpirun,
    print_line: Callable[[str], None],
    advance: Callable[[int], None] = lambda step: None,
) -> dict[str, Any]:
    """Run ranks to their end; return what rank 0 prints after `MARK` when it has measured."""
    environment = module_environment()
    # Intel MPI's mpirun is a script that looks for its helper on PATH.
    environment["PATH"] = search_path(mpirun.path, environment)
    job_command = mpirun_command(
        mpirun,
        job.command,
        ranks=job.ranks,
        hosts=job.hosts,
        environment=environment,
        is_root=os.geteuid() == 0,
        is_terminal=False,
    )
    measured: dict[str, Any] = {}
    with running(job_command, environment=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(MARK):
                print_line(line.rstrip())
                continue
            message = json.loads(line.removeprefix(MARK))
            if "step" in message:
                advance(message["step"])
            else:
                measured = message
        code = process.wait()
    # mpirun can end with status 0 although rank 0 printed no result.
    if code or not measured:
        raise JobFailedError(code or 1)
    return measured


def per_step(
    ranks: Sequence[RankSteps], part: str, choose: Callable[[Sequence[float]], float] = max
) -> list[float]:
    """Return for each step what `choose` takes among the ranks' values, such as of `seconds`."""
    return [choose(values) for values in zip(*(getattr(r, part) for r in ranks), strict=True)]


@dataclass(frozen=True, kw_only=True)
class ExchangeTime:
    """A measured exchange of gradients, all at once: no backward pass hides it."""

    ranks: int
    size: int  # Of the gradients of a rank, as they are sent. [bytes]
    seconds: float  # Median


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """Times of the exchanges of one job."""

    times: tuple[ExchangeTime, ...]
    hosts: int  # Number of hosts on which the ranks ran
    way: str  # That of the gradients, such as `mpi`
    reason: str  # For the transport between hosts

    @property
    def over(self) -> str:
        """Describe network and transport."""
        return f"measured over {self.hosts} hosts, {self.way}: {self.reason}"


def doubling(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on below a number of threads or ranks, and that number."""
    return (*(2**power for power in range((most - 1).bit_length())), most)


def wire_bytes(compress: str) -> int:
    """Return the bytes of a gradient as it is sent, by the value of `distributed.compress`."""
    return 2 if compress == "bf16" else 4


def measure_exchanges(
    *,
    sizes: Sequence[int],
    ranks: int,
    config: Config,
    mpirun: Mpirun,
    hosts: Hosts = (),
) -> Exchanges:
    """Time exchanges of gradients of `sizes` bytes, as they are sent, by the way of a training.

    There are at least two ranks, all on this host if no hosts are given (see `mpirun_command`).
    `config` is that of the training. Other lines of the ranks are printed.

    Raises:
        JobFailedError: A rank failed; it has printed the reason.
    """
    settings = config.distributed
    sent = wire_bytes(settings.compress)
    names = ("backend", "compress", "timeout_s")
    overrides = [f"distributed.{name}={getattr(settings, name)}" for name in names]
    overrides.append(f"launch.comm_cores={config.launch.comm_cores}")
    job = MeasuredJob(
        ranks=ranks,
        hosts=hosts,
        config="demo.yaml",
        overrides=tuple(overrides),
        warm_up=0,
        steps=0,
        alternate=False,
        scenes=Path(),
        exchanges=tuple(size // sent for size in sizes),
    )
    measured = run_ranks(job, mpirun=mpirun, print_line=print)
    times = tuple(
        # JSON turns the numbers of gradients, which are keys, into text.
        ExchangeTime(ranks=ranks, size=sent * int(gradients), seconds=seconds)
        for gradients, seconds in measured["seconds"].items()
    )
    return Exchanges(
        times=times, hosts=measured["hosts"], way=measured["way"], reason=measured["reason"]
    )
