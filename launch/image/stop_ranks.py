"""The hook before the end of a pod whose process 1 is an ssh server, as MPIJob's workers have it.

The server ends at once on SIGTERM, and the kernel then kills all other processes of the container.
So `python -m launch.image.stop_ranks` sends the ranks SIGTERM before, on which they write a
checkpoint, and waits until they have ended. The time is the pod's terminationGracePeriodSeconds.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from common.machine import PROC, ancestors, read_status
from launch.limits import DAEMONS
from launch.waiting import LOOK_S


def main(first: int = 1) -> int:
    """Stop the ranks below a process, which is that of the container; return the exit status."""
    ranks = list(ranks_below(first))
    for rank in ranks:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(rank, signal.SIGTERM)
    while any((PROC / str(rank)).exists() for rank in ranks):
        time.sleep(LOOK_S)
    return 0


def ranks_below(first: int) -> Iterator[int]:
    """Yield the processes that launchers' processes have started, below the `first` one."""
    for folder in PROC.glob("[0-9]*"):
        status = read_status(folder / "status")
        parent = read_status(PROC / status.get("PPid", "0") / "status")
        is_rank = parent.get("Name") in DAEMONS and status.get("Name") not in DAEMONS
        if is_rank and (first == 1 or first in ancestors(int(folder.name))):
            yield int(folder.name)


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
