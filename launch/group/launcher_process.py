"""The process that has started this rank, and what to do when it is gone.

MPICH's and Intel MPI's helpers kill their ranks when mpirun is gone; Open MPI's and torchrun's
ranks would train on, in a folder that nobody knows to be in use.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress

from launch.group.mpi_exchange import MPI_LAUNCHERS
from launch.ranks import Ranks


def launcher_process(ranks: Ranks, environment: Mapping[str, str]) -> int | None:
    """The process number of the launcher's part on this host; None where it may end before us.

    mpirun, srun and torchrun stay until their ranks have ended. A script that starts ranks with
    `RANK` and `WORLD_SIZE` need not.
    """
    stays = ranks.launcher in (*MPI_LAUNCHERS, "slurm") or "TORCHELASTIC_RUN_ID" in environment
    return os.getppid() if stays else None


def is_gone(launcher: int | None) -> bool:
    """Whether it has ended: its children have got another parent."""
    return launcher is not None and os.getppid() != launcher


def stop_without_launcher() -> None:
    """Ask this rank to stop, as a SIGTERM of the launcher would have done.

    What it prints goes nowhere from now on: the launcher's pipes are broken, and a line of progress
    would end the run before its checkpoint.
    """
    with suppress(OSError):  # at once: lines of two ranks do not mix
        os.write(2, b"error: the launcher has ended; stopping as after SIGTERM\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    os.kill(os.getpid(), signal.SIGTERM)
