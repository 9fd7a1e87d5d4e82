"""The mpirun that starts ranks: which one, of which family, and its command line.

No launcher binds ranks to cores here: each rank reads the host's sockets and pins itself. MPICH,
Intel MPI and Open MPI have different options for the same thing.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.errors import InputError
from launch.ranks import Ranks

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
    """Return the given mpirun; else the cluster's own, on PATH; else that of this environment.

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
    """Return whether it is a file that may be executed."""
    return path.is_file() and os.access(path, os.X_OK)


def identify(path: Path) -> Mpirun:
    """Return an mpirun with its family, which its version names."""
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


Hosts = Sequence[tuple[str, int]]
"""Names, and the number of ranks of each; none: this host, or what the batch system has given."""

INTEL_FLAGS = ("-genv", "I_MPI_PIN", "off")

PASSED_ON = (
    "CCL_",
    "DNNL_",
    "FI_",
    "GLOO_",
    "GOMP_",
    "KMP_",
    "LD_",
    "MALLOC_",
    "MPI4PY_",
    "OMP_",
    "ONEDNN_",
    "PYTHON",
    "RETINANET_",
    "TCMALLOC_",
    "TORCH_",
)
"""Open MPI gives other hosts no variables but those named; MPICH and Intel MPI give all."""


def mpirun_command(
    mpirun: Mpirun,
    command: Sequence[str],
    *,
    ranks: int,
    hosts: Hosts,
    environment: Mapping[str, str],
    is_root: bool,
    is_terminal: bool,
) -> list[str]:
    """Return the words that start `ranks` times `command`.

    Args:
        mpirun: What starts them.
        command: What each rank runs.
        ranks: On all hosts.
        hosts: Where, and how many on each.
        environment: This process's variables, some of which Open MPI has to be told to pass on.
        is_root: Whether this user is root, to whom Open MPI wants an answer.
        is_terminal: Whether the output goes to a terminal.
    """
    if mpirun.family == "intel-mpi" and len({count for _, count in hosts}) > 1:
        return [str(mpirun.path), *INTEL_FLAGS, *intel_words_of_each_host(hosts, command)]
    if mpirun.family == "mpich":
        flags = ["-bind-to", "none"] + (["-hosts", with_counts(hosts)] if hosts else [])
    elif mpirun.family == "intel-mpi":
        flags = list(INTEL_FLAGS)
        if hosts:
            flags += ["-hosts", ",".join(name for name, _ in hosts), "-ppn", str(hosts[0][1])]
    else:
        flags = open_mpi_flags(hosts, environment, is_root=is_root, is_terminal=is_terminal)
    return [str(mpirun.path), *flags, "-np", str(ranks), *command]


def open_mpi_flags(
    hosts: Hosts, environment: Mapping[str, str], *, is_root: bool, is_terminal: bool
) -> list[str]:
    """Return the options that Open MPI needs and the others do not."""
    flags = ["--allow-run-as-root"] if is_root else []
    flags += ["--bind-to", "none", "--map-by", "slot"]
    flags += ["--host", with_counts(hosts)] if hosts else []
    # Its ranks have a terminal of their own, whatever mpirun has: no bars of progress in files.
    flags += [] if is_terminal else ["-x", "TTY_COMPATIBLE=0"]
    if len(hosts) > 1:
        names = sorted(name for name in environment if name.startswith(PASSED_ON))
        flags += [word for name in names for word in ("-x", name)]
    return flags


def with_counts(hosts: Hosts) -> str:
    """Return `a:4,b:4`."""
    return ",".join(f"{name}:{count}" for name, count in hosts)


def intel_words_of_each_host(hosts: Hosts, command: Sequence[str]) -> list[str]:
    """Return a command for each host: Intel MPI takes different counts only so, or from a file."""
    words: list[str] = []
    for name, count in hosts:
        words += [":"] if words else []
        words += ["-host", name, "-n", str(count), *command]
    return words


def by_this_python(command: Sequence[str]) -> list[str]:
    """Return a command with scripts and `python …` run by this interpreter."""
    first, *rest = command
    if Path(first).suffix == ".py":
        return [sys.executable, *command]
    if first in ("python", "python3"):
        return [sys.executable, *rest]
    return list(command)


ANY_RANKS_OPTION = "mpirun -np, or --np"
"""Of mpirun and of this program's own commands."""


def launcher_command(ranks: Ranks) -> list[str]:
    """Return what comes before `python`: such as `mpirun -np 8`; nothing for one process."""
    if ranks.launcher == "none":
        return []
    if ranks.launcher == "slurm":
        return ["srun", "-n", str(ranks.size)]
    if ranks.launcher == "torchrun":
        return ["torchrun", f"--nproc-per-node={ranks.local_size}"]
    return ["mpirun", "-np", str(ranks.size)]


def ranks_option(launcher: str) -> str:
    """Return the options of a launcher that set the number of ranks of a host."""
    if launcher == "slurm":
        return "srun --ntasks-per-node, or -n"
    if launcher == "torchrun":
        return "torchrun --nproc-per-node, or LOCAL_WORLD_SIZE"
    return ANY_RANKS_OPTION
