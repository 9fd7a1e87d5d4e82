"""Programs started as several ranks by the project's own mpirun."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import run_program, start_program

REPOSITORY = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.prefix) / "bin" / "mpirun"
MPIRUNS = {
    "mpich": MPIRUN,
    "intel-mpi": REPOSITORY / ".venv-intel-mpi" / "bin" / "mpirun",
    "open-mpi": REPOSITORY / ".venv-open-mpi" / "bin" / "mpirun",
}
"""The mpirun of each family; `make intel-mpi open-mpi` installs the last two."""


class Ended(NamedTuple):
    """The exit status and the output of a job."""

    code: int
    output: str
    errors: str


TrainHere = Callable[..., Ended]
"""`train_here(*arguments)` runs train.py in this process."""


def start_ranks(ranks: int, *command: str, **variables: str) -> subprocess.Popen[str]:
    """Start `mpirun -np RANKS python COMMAND` in a process group of its own."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
    command = (str(MPIRUN), "-np", str(ranks), sys.executable, *command)
    return start_program(*command, env=environment, start_new_session=True)


def ended(job: subprocess.Popen[str], *, timeout: float = 300) -> Ended:
    """Wait for the end of a job; after the timeout, kill it with its process group."""
    try:
        output, errors = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    return Ended(job.returncode, output, errors)


def run_python(text: str, *arguments: str, flags: Sequence[str] = (), **variables: str) -> Ended:
    """Run a program text with this Python, in the repository."""
    command = [sys.executable, *flags, "-c", text, *arguments]
    done = run_program(*command, env={**os.environ, **variables}, timeout=120)
    return Ended(done.returncode, done.stdout, done.stderr)


def run_ranks(ranks: int, *command: str, timeout: float = 300, **variables: str) -> Ended:
    """Start ranks and wait for their end."""
    return ended(start_ranks(ranks, *command, **variables), timeout=timeout)


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def start_apart(
    ranks: int, *command: str, started: int | None = None
) -> list[subprocess.Popen[str]]:
    """Start the ranks, or the first ones, without a launcher; they connect by the environment."""
    port = free_port()
    return [
        start_program(
            *(sys.executable, *command),
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(ranks),
                "RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
            },
        )
        for rank in range(ranks if started is None else started)
    ]
