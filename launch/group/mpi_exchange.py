"""MPI among ranks that start: exchanges in which a failure reaches all, and an orderly end.

An mpirun of MPICH kills all ranks, and its status is 9, where one of them ends without having
finalized MPI. To finalize it is collective. So a rank that cannot start takes part in the next
exchange with its failure; then all finalize MPI and exit with the same status.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mpi4py

from launch.ranks import Ranks
from retinanet.errors import InputError

MPI_LAUNCHERS = ("mpich", "intel-mpi", "open-mpi")
MODULE = "mpi4py.MPI"


class StartFailedError(Exception):
    """A rank cannot start, as all ranks have learned in an exchange; `text` is for stderr."""

    def __init__(self, rank: int, *, code: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank
        self.code = code
        self.text = text


def start_mpi(ranks: Ranks, environment: Mapping[str, str]) -> None:
    """Load MPI's library and initialize it; all ranks call it.

    Raises:
        InputError: The library that mpi4py finds is not the launcher's.
    """
    choose_library(ranks, environment)
    mpi4py.rc.finalize = False  # at the end of a process that fails it would wait for the others
    try:
        mpi = importlib.import_module(MODULE)  # initializes MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"mpirun of {ranks.launcher}: mpi4py cannot load its library: {reason}; set "
            "MPI4PY_LIBMPI=/path/to/libmpi.so, or MASTER_ADDR and MASTER_PORT"
        ) from error
    if mpi.COMM_WORLD.size != ranks.size:
        library = mpi.Get_library_version().splitlines()[0]
        raise InputError(
            f"mpirun of {ranks.launcher} started {ranks.size} ranks, but its library is not "
            f"{library}, which mpi4py found; set MPI4PY_LIBMPI=/path/to/libmpi.so, or MASTER_ADDR "
            "and MASTER_PORT"
        )


def exchange(value: Any, *, failure: tuple[int, str] | None = None) -> list[Any]:
    """Return the values of all ranks, in order of rank; all ranks call it.

    Args:
        value: This rank's; pickled.
        failure: Exit code and text for stderr, if this rank cannot go on.

    Raises:
        StartFailedError: On all ranks, if one has given a failure; the lowest rank's counts.
    """
    pairs = sys.modules[MODULE].COMM_WORLD.allgather((value, failure))
    for rank, (_, found) in enumerate(pairs):
        if found is not None:
            raise StartFailedError(rank, code=found[0], text=found[1])
    return [value for value, _ in pairs]


def is_running(ranks: Ranks) -> bool:
    """Whether MPI is initialized, with the launcher's ranks, and not finalized."""
    mpi = sys.modules.get(MODULE)
    return mpi is not None and not mpi.Is_finalized() and mpi.COMM_WORLD.size == ranks.size


def finalize() -> None:
    """Finalize MPI; all ranks call it."""
    sys.modules[MODULE].Finalize()


def choose_library(ranks: Ranks, environment: Mapping[str, str]) -> None:
    """Have mpi4py load the library that talks to the launcher, unless the user has chosen.

    MPICH's, which comes with our requirements, talks to Intel MPI's launcher too.
    """
    if "MPI4PY_LIBMPI" in environment or "MPI4PY_MPIABI" in environment:
        return
    if ranks.launcher == "open-mpi":
        library = Path(environment.get("OMPI_LIBDIR_LOC", ""), "libmpi.so.40")
    else:
        library = Path(sys.prefix, "lib", "libmpi.so.12")
    if library.is_file():
        os.environ["MPI4PY_LIBMPI"] = str(library)
    elif ranks.launcher == "open-mpi":
        os.environ["MPI4PY_MPIABI"] = "openmpi"  # and the dynamic linker finds it, or not
