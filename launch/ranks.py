"""The rank of this process, from the variables of the launcher that started it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import InputError

OPEN_MPI = "OMPI_COMM_WORLD_"
MOST_DIGITS = 9
MOST_HOSTS = 1_000_000
BATCH_STEPS = 0xFFFFFFF0
"""Slurm's step numbers from here on are its own: the batch script, an interactive shell."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The rank of this process and the number of ranks."""

    rank: int
    size: int
    local_rank: int  # Its number on this host, from 0
    local_size: int
    launcher: str  # `none`, `mpich`, `intel-mpi`, `open-mpi`, `slurm` or `torchrun`

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes and prints for all."""
        return self.rank == 0


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """Read the variables of Intel MPI, MPICH, Open MPI, srun and torchrun.

    If one launcher started another, the inner one counts: torchrun on each host of an srun, or
    mpirun inside a Slurm job. `RANK` and `WORLD_SIZE` alone, which jobs in clusters often carry,
    count only where there is no MPI. Empty variables are as good as none.

    Raises:
        InputError: Variables contradict each other, or some are missing or no numbers; names one.
    """
    variables = {name: value for name, value in environment.items() if value}
    is_torchrun = "TORCHELASTIC_RUN_ID" in variables and "RANK" in variables
    if not is_torchrun and f"{OPEN_MPI}RANK" in variables:
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        rank, size, local_rank, local_size = (f"{OPEN_MPI}{name}" for name in names)
        return checked(variables, launcher="open-mpi", names=(rank, size, local_rank, local_size))
    has_hydra = "PMI_RANK" in variables
    # `srun --mpi=pmi2` sets PMI_RANK too, but not this variable.
    if has_hydra and "MPI_LOCALRANKID" not in variables:
        has_hydra = not in_slurm_step(variables)
    if not is_torchrun and has_hydra:
        # MPICH's and Intel MPI's launchers are of one family.
        signs = ("I_MPI_HYDRA_UUID", "I_MPI_INFO_LCPU", "I_MPI_PIN_INFO")  # I_MPI_ROOT: installed
        launcher = "intel-mpi" if any(name in variables for name in signs) else "mpich"
        names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
        local = (0, 1) if number(variables, "PMI_SIZE", default=1) == 1 else None
        return checked(variables, launcher=launcher, names=names, local_defaults=local)
    if "RANK" in variables:  # torchrun's; without its local variables, a host has one rank
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        local = None if "LOCAL_RANK" in variables else (0, 1)
        return checked(variables, launcher="torchrun", names=names, local_defaults=local)
    if in_slurm_step(variables):
        return slurm_ranks(variables)
    if "PMI_ID" in variables:
        raise InputError(
            f"PMI_ID={variables['PMI_ID']}: with -pmi-port, mpirun does not set the number of "
            "ranks; start mpirun without -pmi-port"
        )
    for size, rank in (("PMI_SIZE", "PMI_RANK"), ("WORLD_SIZE", "RANK")):
        if number(variables, size, default=1) > 1:
            raise InputError(
                f"{size}={variables[size]}: {rank} is not set; unset {size} to train in one "
                "process, or start with mpirun, srun or torchrun"
            )
    return Ranks(rank=0, size=1, local_rank=0, local_size=1, launcher="none")


def in_slurm_step(environment: Mapping[str, str]) -> bool:
    """Return whether `srun` started this process; a batch script has no step, or one of Slurm's."""
    # A batch script always has the number 0.
    if number(environment, "SLURM_PROCID", default=0) > 0:
        return True
    step = number(environment, "SLURM_STEP_ID", default=BATCH_STEPS, most_digits=10)
    return "SLURM_PROCID" in environment and step < BATCH_STEPS


def slurm_ranks(environment: Mapping[str, str]) -> Ranks:
    """Return the rank of a task of `srun`; counts of each host are written as `2(x3),1`."""
    # A step may have fewer tasks than its job, and on fewer hosts.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    steps = "SLURM_STEP_TASKS_PER_NODE"
    per_node = steps if steps in environment else "SLURM_TASKS_PER_NODE"
    counted = dict(environment)
    if number(environment, size, default=1) == 1:
        counted |= {size: "1", "SLURM_LOCALID": "0", per_node: "1"}
    else:
        tasks = tasks_per_node(environment, per_node)
        node = number(environment, "SLURM_NODEID")
        if node >= len(tasks) or sum(tasks) != number(environment, size):
            raise InputError(
                f"{per_node}={environment[per_node]}: does not agree with SLURM_NODEID={node} and "
                f"{size}={environment[size]}; start with srun python train.py …"
            )
        counted[per_node] = str(tasks[node])
    names = ("SLURM_PROCID", size, "SLURM_LOCALID", per_node)
    return checked(counted, launcher="slurm", names=names)


def tasks_per_node(environment: Mapping[str, str], name: str) -> list[int]:
    """Return counts of each host in order, of a variable such as `2(x3),1`."""
    tasks: list[int] = []
    for part in environment.get(name, "").split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x([1-9]\d{0,6})\))?", part, re.ASCII)
        if match is None or len(tasks) + int(match[2] or 1) > MOST_HOSTS:
            raise InputError(
                f"{name}={environment.get(name, '')}: expected a count for each host, such as "
                "2(x3),1; start with srun python train.py …"
            )
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def checked(
    environment: Mapping[str, str],
    *,
    launcher: str,
    names: tuple[str, str, str, str],
    local_defaults: tuple[int, int] | None = None,
) -> Ranks:
    """Return the rank of four variables: rank, size, and both on this host.

    Raises:
        InputError: One is missing or no number, or they contradict each other.
    """
    local = local_defaults or (None, None)
    values = [
        number(environment, name, default=default)
        for name, default in zip(names, (None, None, *local), strict=True)
    ]
    rank, size, local_rank, local_size = values
    limits = ((0, 1, size - 1), (2, 3, local_size - 1), (2, 0, rank), (3, 1, size))
    for part, whole, most in limits:
        if values[part] > most:
            raise InputError(
                f"{names[part]}={values[part]}: does not agree with {names[whole]}="
                f"{values[whole]}; start with mpirun, srun or torchrun, which set both"
            )
    return Ranks(
        rank=rank, size=size, local_rank=local_rank, local_size=local_size, launcher=launcher
    )


def number(
    environment: Mapping[str, str],
    name: str,
    *,
    default: int | None = None,
    most_digits: int = MOST_DIGITS,
) -> int:
    """Return a count from the environment.

    Raises:
        InputError: It is no number, or missing without a default.
    """
    text = environment.get(name)
    if text is None and default is not None:
        return default
    is_count = text is not None and text.isascii() and text.isdigit()
    if text is None or not is_count or len(text.lstrip("0")) > most_digits:
        problem = f"{name}: is not set" if text is None else f"{name}={text}: is not a count"
        raise InputError(
            f"{problem}; start with mpirun, srun or torchrun, or unset the variables of these"
        )
    return int(text)
