"""Where all ranks would say the same before they have met, rank 0 says it."""

import importlib
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import mpi4py

from launch.group.meeting import MPI_LAUNCHERS, choose_library
from launch.ranks import Ranks

SECONDS_TO_BE_ENDED = 3.0
"""After rank 0 has ended with the same error, the launcher ends the others."""


@contextmanager
def one_voice(ranks: Ranks) -> Iterator[None]:
    """Keep ranks other than 0 silent meanwhile.

    The end of such a rank is held back until rank 0 has had time to end in the same way. Where
    that does not happen, the cause is this rank's alone, and is told.
    """
    held_back = io.StringIO()
    try:
        with silenced(held_back) if ranks.rank else nullcontext():
            yield
    except BaseException as error:
        if ranks.size > 1 and not ended_well(error):
            have_launcher_end_all(ranks)
            time.sleep(SECONDS_TO_BE_ENDED if ranks.rank else 0)
            sys.stderr.write(held_back.getvalue())
        raise


@contextmanager
def silenced(errors: io.StringIO) -> Iterator[None]:
    """Drop what is printed meanwhile, but keep what goes to stderr."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(errors):
        yield


def ended_well(error: BaseException) -> bool:
    """Whether it is the end of `--help`."""
    return isinstance(error, SystemExit) and not error.code


def have_launcher_end_all(ranks: Ranks) -> None:
    """Start MPI: mpirun ends all ranks when one that has done so ends with an error, else not."""
    if ranks.launcher in MPI_LAUNCHERS and "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.finalize = False
        choose_library(ranks, os.environ)
        with suppress(ImportError, RuntimeError):
            importlib.import_module("mpi4py.MPI")
