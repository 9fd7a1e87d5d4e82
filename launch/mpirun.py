"""The mpirun that starts ranks: which one, of which family, and its command line.

No launcher binds ranks to cores here: each rank reads the host's sockets and pins itself. MPICH,
Intel MPI and Open MPI have different options for the same thing (`FAMILIES`).
"""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from common.errors import InputError
from common.processes import finished
from common.program import PROGRAM, console_script
from common.walk import real_path
from launch.hosts import BATCH_SYSTEMS
from launch.ranks import Ranks, launcher_named

Family = Literal["mpich", "intel-mpi", "open-mpi"]

Hosts = Sequence[tuple[str, int]]
"""Names, and the number of ranks of each; none: this host, or what the batch system has given."""


class FamilyOptions(NamedTuple):
    """The options in which the mpiruns of the families differ."""

    signs: tuple[str, ...]  # Texts of which `mpirun --version` prints one
    # Intel MPI and Open MPI otherwise bind each of two ranks to a single core.
    always: tuple[str, ...]
    between_hosts: tuple[str, ...]  # With hosts that are named, or a batch system's
    on_hosts: Callable[[Hosts], list[str]]
    """Names the hosts with their numbers of ranks, which are equal for Intel MPI."""


def with_counts(hosts: Hosts) -> str:
    """Return `a:4,b:4`."""
    return ",".join(f"{name}:{count}" for name, count in hosts)


FAMILIES: dict[Family, FamilyOptions] = {
    "intel-mpi": FamilyOptions(
        ("Intel(R) MPI",),
        # Without the second option it kills the others when a rank ends with an error or 75. Its
        # own status is then 255, although they were about to end alike.
        ("-genv", "I_MPI_PIN", "off", "-disable-auto-cleanup"),
        (),
        lambda hosts: ["-hosts", ",".join(name for name, _ in hosts), "-ppn", str(hosts[0][1])],
    ),
    "mpich": FamilyOptions(
        ("HYDRA",),
        ("-bind-to", "none"),
        # Otherwise, when a rank with MPI dies, it kills all others before they have said so.
        ("-disable-auto-cleanup",),
        lambda hosts: ["-hosts", with_counts(hosts)],
    ),
    "open-mpi": FamilyOptions(
        ("Open MPI", "OpenRTE", "PRRTE"),
        ("--bind-to", "none", "--map-by", "slot"),
        (),
        lambda hosts: ["--host", with_counts(hosts)],
    ),
}
"""Intel MPI first: it calls itself HYDRA too."""

HELPER = "hydra_pmi_proxy"
"""Starts the ranks of a host for MPICH and Intel MPI; Open MPI's mpirun starts those of its own."""

STARTED_BY_US = "RETINANET_LAUNCH_RUN"
"""Set in ranks of `retinanet launch run`, which sends the signal that the mpirun needs: the words
of its command line before those of the ranks."""

NAMES = ("mpirun", "mpiexec", "mpiexec.hydra")
SECONDS = 30  # For `mpirun --version`, which may come from a network drive


@dataclass(frozen=True)
class Mpirun:
    """A program that starts ranks."""

    path: Path  # Absolute: other hosts find its helpers next to it
    family: Family


def choose_mpirun(given: Path | None) -> Mpirun:
    """Return the given mpirun; else the cluster's own, on PATH; else that of this environment.

    A cluster's own is built for its network and its batch system.

    Raises:
        InputError: There is none, or its kind cannot be determined.
    """
    if given is not None:
        if shutil.which(given.absolute()) is None:
            raise InputError(f"--mpirun: {given} is not executable; give the path of an mpirun")
        return identify(given.absolute())
    environment = Path(sys.prefix) / "bin"
    on_path = [Path(folder) for folder in os.get_exec_path() if folder]
    # An activated environment is first on PATH, before the cluster's MPI: it is tried last.
    others = [folder for folder in on_path if real_path(folder) != real_path(environment)]
    for folder in (*others, environment):
        for name in NAMES:
            if found := shutil.which((folder / name).absolute()):
                return identify(Path(found).absolute())
    raise InputError(
        "mpirun: not found on PATH or in this environment; run "
        "make setup, load your cluster's MPI, or give --mpirun PATH"
    )


def search_path(mpirun: Path, environment: Mapping[str, str]) -> str:
    """Return PATH for a process that runs an mpirun: its own folder first.

    Intel MPI's mpirun is a script that looks for mpiexec.hydra on PATH.
    """
    return os.pathsep.join(filter(None, [str(mpirun.parent), environment.get("PATH", os.defpath)]))


def identify(path: Path) -> Mpirun:
    """Return an mpirun with its family, which its version names."""
    environment = {**os.environ, "PATH": search_path(path, os.environ)}
    done = finished([path, "--version"], seconds=SECONDS, environment=environment)
    output = done.stdout + done.stderr
    for family, options in FAMILIES.items():
        if any(sign in output for sign in options.signs):
            return Mpirun(path, family)
    first = output.strip().partition("\n")[0] or "nothing"
    raise InputError(
        f"{path}: --version prints {first!r}, which is not MPICH, Intel MPI or Open MPI; give "
        "another one with --mpirun PATH"
    )


THREADING = ("GOMP_", "KMP_", "OMP_")
# Those of Intel MPI under Open MPI's mpirun are for oneCCL, which has Intel MPI's library in it.
NETWORK = ("CCL_", "FI_", "GLOO_", "I_MPI_", "MPI4PY_", "PSM3_", "UCX_")
LIBRARIES = ("DNNL_", "LD_", "MALLOC_", "ONEDNN_", "PYTHON", "RETINANET_", "TCMALLOC_", "TORCH_")
PASSED_ON = (*THREADING, *NETWORK, *LIBRARIES)
"""Variables to name with -x: Open MPI passes no others to other hosts; MPICH and Intel MPI pass
all."""


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
    """Return the command line that starts `command` on `ranks` ranks, distributed over `hosts`."""
    family = FAMILIES[mpirun.family]
    arguments = [str(mpirun.path)]
    if mpirun.family == "intel-mpi" and len({count for _, count in hosts}) > 1:
        # A command for each host: Intel MPI takes different counts only so, or from a file.
        arguments += family.always
        for place, (name, count) in enumerate(hosts):
            arguments += [":"] if place else []
            arguments += ["-host", name, "-n", str(count), *command]
        return arguments
    is_open_mpi = mpirun.family == "open-mpi"
    if is_open_mpi and is_root:
        arguments.append("--allow-run-as-root")
    arguments += family.always
    has_batch_system = any(name in environment for name in BATCH_SYSTEMS)
    if hosts or has_batch_system:
        arguments += family.between_hosts
    if hosts:
        arguments += family.on_hosts(hosts)
    if is_open_mpi and not is_terminal:
        # Open MPI gives ranks a pseudo-terminal even if its own output is a file, in which
        # progress bars would then be drawn.
        arguments += ["-x", "TTY_COMPATIBLE=0"]
    if is_open_mpi and (len(hosts) > 1 or has_batch_system):
        for name in sorted(name for name in environment if name.startswith(PASSED_ON)):
            arguments += ["-x", name]
    return [*arguments, "-np", str(ranks), *command]


def by_this_python(command: Sequence[str]) -> list[str]:
    """Return a command with scripts and `python …` run by this interpreter."""
    first, *arguments = command
    if Path(first).suffix == ".py":
        return [sys.executable, *command]
    if first in ("python", "python3"):
        return [sys.executable, *arguments]
    if first == PROGRAM:  # other hosts may not have it on PATH
        script = console_script()
        return [str(script), *arguments] if script.is_file() else [sys.executable, "-m", *command]
    return list(command)


def launcher_command(ranks: Ranks, environment: Mapping[str, str]) -> list[str]:
    """Return the arguments before `python`, such as `mpirun -np 8`.

    None for one process, and for ranks that a script started: it sets their variables again. On
    several hosts torchrun is started on each, with its own `--node-rank`.
    """
    if STARTED_BY_US in environment:
        return shlex.split(environment[STARTED_BY_US])
    if ranks.launcher == "torchrun":
        if "TORCHELASTIC_RUN_ID" not in environment:
            return []
        hosts = ranks.size // ranks.local_size
        options = {"nnodes": hosts, "node-rank": environment.get("GROUP_RANK", "0")}
        options["master-addr"] = environment.get("MASTER_ADDR", "")
        options["master-port"] = environment.get("MASTER_PORT", "")
        of_hosts = [f"--{name}={value}" for name, value in options.items()] if hosts > 1 else []
        return ["torchrun", *of_hosts, f"--nproc-per-node={ranks.local_size}"]
    start = launcher_named(ranks.launcher).start.format(ranks.size).split()
    if ranks.launcher != "slurm":
        return start
    # Options that a batch script, or its user, gave srun: without them a task may get one core.
    options = {
        "nodes": environment.get("SLURM_STEP_NUM_NODES", ""),
        "cpus-per-task": environment.get("SLURM_CPUS_PER_TASK", ""),
        "cpu-bind": "none" if environment.get("SLURM_CPU_BIND_TYPE") == "none" else "",
    }
    return [*start, *(f"--{name}={value}" for name, value in options.items() if value)]
