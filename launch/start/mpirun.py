"""Which mpirun there is, and of which family: each wants its own flags."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from retinanet.errors import InputError

Family = Literal["mpich", "intel-mpi", "open-mpi"]

SIGNS: dict[str, Family] = {
    "Intel(R) MPI": "intel-mpi",
    "HYDRA": "mpich",
    "Open MPI": "open-mpi",
    "OpenRTE": "open-mpi",
    "PRRTE": "open-mpi",
}
"""What `mpirun --version` prints, and whose it is."""

NAMES = ("mpirun", "mpiexec", "mpiexec.hydra")
SECONDS = 30
"""For `mpirun --version`, which may come from a network drive."""


@dataclass(frozen=True)
class Mpirun:
    """A program that starts ranks."""

    path: Path
    """Absolute: other hosts find its helpers next to it."""
    family: Family


def choose_mpirun(given: Path | None) -> Mpirun:
    """The one given; else the cluster's own, on PATH; else the one of this environment.

    A cluster's own knows its network and its batch system.

    Raises:
        InputError: There is none, or it does not say what it is.
    """
    if given is not None:
        if not is_program(given):
            raise InputError(f"--mpirun: {given} is not a program; give the path of an mpirun")
        return identify(given.absolute())
    ours = Path(sys.prefix) / "bin"
    on_path = [Path(folder) for folder in os.get_exec_path() if folder]
    others = [folder for folder in on_path if folder.resolve() != ours.resolve()]
    for folder in (*others, ours):
        for name in NAMES:
            if is_program(folder / name):
                return identify((folder / name).absolute())
    raise InputError(
        "no mpirun: there is none on PATH and none in this environment; run "
        "pip install -r requirements.txt, load your cluster's MPI, or give --mpirun PATH"
    )


def search_path(mpirun: Path, environment: Mapping[str, str]) -> str:
    """Return PATH for a process that runs an mpirun: its own folder first.

    Intel MPI's mpirun is a script that looks for mpiexec.hydra on PATH, where there may be none, or
    another MPI's.
    """
    return os.pathsep.join(filter(None, [str(mpirun.parent), environment.get("PATH", os.defpath)]))


def is_program(path: Path) -> bool:
    """Whether it is a file that may be executed."""
    return path.is_file() and os.access(path, os.X_OK)


def identify(path: Path) -> Mpirun:
    """Ask an mpirun what it is."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "PATH": search_path(path, os.environ)},
            timeout=SECONDS,
            check=False,
        )
        said = done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    for sign, family in SIGNS.items():
        if sign in said:
            return Mpirun(path, family)
    first = said.strip().partition("\n")[0] or "nothing"
    raise InputError(
        f"{path} --version says {first!r}: not MPICH, Intel MPI or Open MPI; give another with "
        "--mpirun PATH"
    )
