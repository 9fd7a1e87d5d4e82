"""The command line that starts ranks, for each family of mpirun.

No launcher binds ranks to cores here: each rank knows the host's sockets and pins itself.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.start.mpirun import Mpirun

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
    """The words that start `ranks` times `command`.

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
    """What Open MPI has to be told, and the others do of themselves."""
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
    """`a:4,b:4`."""
    return ",".join(f"{name}:{count}" for name, count in hosts)


def intel_words_of_each_host(hosts: Hosts, command: Sequence[str]) -> list[str]:
    """Intel MPI takes different counts only as one command for each host, or from a file."""
    words: list[str] = []
    for name, count in hosts:
        words += [":"] if words else []
        words += ["-host", name, "-n", str(count), *command]
    return words


def by_this_python(command: Sequence[str]) -> list[str]:
    """Scripts and `python …` as this interpreter runs them, in this environment."""
    first, *rest = command
    if Path(first).suffix == ".py":
        return [sys.executable, *command]
    if first in ("python", "python3"):
        return [sys.executable, *rest]
    return list(command)
