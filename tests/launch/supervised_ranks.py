"""Rank 1 is killed; rank 0 writes a file if it is not ended. supervised_ranks.py FOLDER [alone]

`alone`: without a supervisor, so that the launcher notices the end of rank 1.
"""

import os
import signal
import sys
import time
from pathlib import Path

from launch.ranks import read_ranks
from launch.rendezvous import finalize_mpi, make_rendezvous
from retinanet.training.async_groups.supervisor import supervise_this_rank


def main() -> None:
    folder = Path(sys.argv[1])
    ranks = read_ranks(os.environ)
    make_rendezvous(ranks, os.environ)
    finalize_mpi()
    if ranks.rank == 1:
        if "alone" not in sys.argv:
            supervise_this_rank(launcher=os.getppid(), silence_s=100).beat()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    (folder / "rank 0 has finished").touch()


if __name__ == "__main__":
    main()
