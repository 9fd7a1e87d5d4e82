"""Rank 1 is killed; rank 0 says by a file that nobody has ended it. kept_ranks.py FOLDER [alone]

`alone`: without a keeper, so that the launcher sees rank 1's end.
"""

import os
import signal
import sys
import time
from pathlib import Path

from launch.ranks import read_ranks
from launch.rendezvous import meet, part
from launch.watchdog import supervise_this_rank


def main() -> None:
    folder = Path(sys.argv[1])
    ranks = read_ranks(os.environ)
    meet(ranks, os.environ)
    part(ranks)
    if ranks.rank == 1:
        if "alone" not in sys.argv:
            supervise_this_rank(launcher=os.getppid(), silence_s=100).beat()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(2)
    (folder / "rank 0 has ended by itself").touch()


if __name__ == "__main__":
    main()
