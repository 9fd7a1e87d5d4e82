"""How a job is asked to stop so that its ranks have time for a checkpoint."""

import signal
from collections.abc import Mapping

from launch.ranks import Ranks
from launch.start.mpirun import Family

GENTLE = "RETINANET_LAUNCH_RUN"
"""Set in ranks that `python -m launch run` has started: it asks as this launcher needs it."""


def gentle_stop(family: Family) -> signal.Signals:
    """The signal that an mpirun passes on to its ranks, and kills none of them for.

    Open MPI's kills them half a second after SIGINT and SIGTERM (version 5; two seconds in 4).
    """
    return signal.SIGUSR1 if family == "open-mpi" else signal.SIGTERM


def stopping_notes(ranks: Ranks, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What to say where this rank's launcher leaves too little time for a checkpoint."""
    if ranks.launcher != "open-mpi" or GENTLE in environment:
        return ()
    return (
        "open-mpi: mpirun kills ranks 0.5 to 2 s after Ctrl-C or SIGTERM, which is too soon for a "
        "checkpoint; stop it with kill -USR1, or start it with python -m launch run",
    )
