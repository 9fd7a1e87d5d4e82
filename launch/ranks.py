"""The launchers that start ranks, and the rank of this process, from their variables."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from common.errors import InputError

BATCH_STEPS = 0xFFFFFFF0
"""Slurm's step numbers from here on are its own: the batch script, an interactive shell."""
ANY_RANKS_OPTION = "mpirun -np, or --np"
OTHERS = "start with mpirun, srun or torchrun"

Variables = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The rank of this process and the number of ranks."""

    rank: int
    size: int
    local_rank: int  # Its number on this host, from 0
    local_size: int
    launcher: str  # `none`, or a name of `LAUNCHERS`

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes and prints for all."""
        return self.rank == 0


LOCAL_HERE = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Variables by which a user names the ranks of a host where the launcher does not."""


@dataclass(frozen=True)
class Launcher:
    """The variables that a launcher sets for each rank, and how it is called."""

    name: str
    variables: tuple[str, str, str, str]  # Rank, number of ranks, and both on this host
    signs: tuple[str, ...] = ()  # Counts only where one of these is set too
    derive: Callable[[Variables], Variables] = dict
    """Adds the variables that the launcher has in another form."""
    unbound: str = "retinanet train without taskset or numactl"
    """How to start ranks that are not bound to cores."""
    start: str = ""  # Starts so many ranks; empty: several commands, or a cluster's own
    ranks_option: str = ANY_RANKS_OPTION  # Sets the ranks of a host
    has_mpi: bool = False  # Whether its ranks meet by MPI


def prefixed(prefix: str) -> tuple[str, str, str, str]:
    """Return four variables that differ in their prefix only."""
    return f"{prefix}RANK", f"{prefix}SIZE", f"{prefix}LOCAL_RANK", f"{prefix}LOCAL_SIZE"


def alone_on_host(variables: Variables) -> Variables:
    """Return the variables of a rank that has a host to itself, unless they say otherwise."""
    if any(name in variables for name in LOCAL_HERE):
        return variables
    return {**variables, **dict(zip(LOCAL_HERE, "01", strict=True))}


FLUX_LOCAL_SIZE = "FLUX_JOB_SIZE/FLUX_JOB_NNODES"


def flux_counts(variables: Variables) -> Variables:
    """Add the ranks of each host, which must be equal: a larger local rank is refused later."""
    ranks, hosts = (number(variables, name) for name in FLUX_LOCAL_SIZE.split("/"))
    if not hosts or ranks % hosts:
        raise InputError(
            f"FLUX_JOB_NNODES={hosts}: does not divide FLUX_JOB_SIZE={ranks}; start as many ranks "
            "on each host, with flux run --tasks-per-node"
        )
    return {**variables, FLUX_LOCAL_SIZE: str(ranks // hosts)}


def sagemaker_counts(variables: Variables) -> Variables:
    """Add the number of hosts and of this host among them, from a list of their names in JSON."""
    text, here = variables.get("SM_HOSTS", ""), variables["SM_CURRENT_HOST"]
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError):
        hosts = None
    if not isinstance(hosts, list) or hosts.count(here) != 1:
        raise InputError(
            f"SM_CURRENT_HOST={here}: is not one of the names in SM_HOSTS={text}; {OTHERS}"
        )
    hosts_and_place = {"SM_HOSTS": str(len(hosts)), "SM_CURRENT_HOST": str(hosts.index(here))}
    return alone_on_host({**variables, **hosts_and_place})


MPICH = Launcher(
    "mpich",
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    signs=("MPI_LOCALRANKID",),
    unbound="mpirun -bind-to none",
    start="mpirun -np {}",
    has_mpi=True,
)
TORCHRUN = Launcher(
    "torchrun",
    ("RANK", "WORLD_SIZE", *LOCAL_HERE),
    signs=("TORCHELASTIC_RUN_ID",),
    derive=alone_on_host,
    unbound="torchrun without taskset or numactl",
    ranks_option="torchrun --nproc-per-node, or LOCAL_WORLD_SIZE",
)
SLURM = Launcher(
    "slurm",
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"),
    unbound="srun --cpu-bind=none",
    start="srun -n {}",
    ranks_option="srun --ntasks-per-node, or -n",
)
PALS = Launcher(
    "pals",
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    signs=("PMI_SIZE",),
    unbound="mpiexec --cpu-bind none",
    start="mpiexec -n {}",
    ranks_option="mpiexec --ppn, or -n",
)
LAUNCHERS = (
    TORCHRUN,
    replace(
        MPICH,
        name="open-mpi",
        variables=prefixed("OMPI_COMM_WORLD_"),
        signs=(),
        unbound="mpirun --bind-to none",
    ),
    Launcher("mvapich2", prefixed("MV2_COMM_WORLD_"), start="mpirun_rsh -np {}"),
    Launcher("horovod", prefixed("HOROVOD_"), start="horovodrun -np {}"),
    replace(
        MPICH,
        name="intel-mpi",
        # I_MPI_ROOT only says that it is installed.
        signs=("I_MPI_HYDRA_UUID", "I_MPI_INFO_LCPU", "I_MPI_PIN_INFO"),
        unbound="mpirun -genv I_MPI_PIN=off",
    ),
    MPICH,  # Without the sign, PMI_RANK may be that of srun --mpi=pmi2, of flux or of PALS
    replace(TORCHRUN, signs=()),  # set by a script
    Launcher(
        "jsrun",
        prefixed("JSM_NAMESPACE_"),
        unbound="jsrun --bind none",
        start="jsrun -n {}",
        ranks_option="jsrun -r and -a",
    ),
    Launcher(
        "flux",
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", FLUX_LOCAL_SIZE),
        derive=flux_counts,
        unbound="flux run -o cpu-affinity=off",
        start="flux run -n {}",
        ranks_option="flux run --tasks-per-node",
    ),
    SLURM,
    PALS,
    # With PMIx it sets no number of ranks: the user does.
    replace(PALS, variables=("PALS_RANKID", "WORLD_SIZE", *PALS.variables[2:]), signs=()),
    replace(MPICH, signs=()),
    Launcher("mpirun -pmi-port", ("PMI_ID", "WORLD_SIZE", *LOCAL_HERE)),
    Launcher("aprun", ("ALPS_APP_PE", "WORLD_SIZE", *LOCAL_HERE), unbound="aprun -cc none"),
    Launcher("prun", ("PMIX_RANK", "WORLD_SIZE", *LOCAL_HERE), unbound="prun --bind-to none"),
    # These start one process on each host.
    Launcher("trainjob", ("PET_NODE_RANK", "PET_NNODES", *LOCAL_HERE), derive=alone_on_host),
    Launcher(
        "aws-batch",
        ("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", *LOCAL_HERE),
        derive=alone_on_host,
    ),
    Launcher("sagemaker", ("SM_CURRENT_HOST", "SM_HOSTS", *LOCAL_HERE), derive=sagemaker_counts),
)
"""The inner ones first, where one may have started the other."""
ALONE = Launcher("none", ("", "", "", ""))
MPI_LAUNCHERS = frozenset(launcher.name for launcher in LAUNCHERS if launcher.has_mpi)


def launcher_named(name: str) -> Launcher:
    """Return the launcher of `Ranks.launcher`."""
    return next((launcher for launcher in LAUNCHERS if launcher.name == name), ALONE)


def read_ranks(environment: Variables) -> Ranks:
    """Read the variables of the first of `LAUNCHERS` that has set any.

    If one launcher started another, the inner one counts: torchrun on each host of an srun, or
    mpirun inside a Slurm job. `RANK` and `WORLD_SIZE` alone, which jobs in clusters often carry,
    count only where there is no MPI. Empty variables are as good as none.

    Raises:
        InputError: Variables contradict each other, or some are missing or no numbers; names one.
    """
    variables = {name: value for name, value in environment.items() if value}
    for launcher in LAUNCHERS:
        signs, rank = launcher.signs, launcher.variables[0]
        if launcher is SLURM:
            if in_slurm_step(variables):
                return slurm_ranks(variables)
        elif rank in variables and (not signs or any(sign in variables for sign in signs)):
            return checked(launcher.derive(variables), launcher)
    for launcher in LAUNCHERS:
        rank, size, *_ = launcher.variables
        # A batch script of Slurm is one process, although its job has several tasks.
        if launcher is not SLURM and size in variables and counts_several(variables, size):
            raise InputError(
                f"{size}={variables[size]}: {rank} is not set; unset {size} to train in one "
                f"process, or {OTHERS}"
            )
    return Ranks(rank=0, size=1, local_rank=0, local_size=1, launcher=ALONE.name)


def counts_several(variables: Variables, name: str) -> bool:
    """Return whether a variable gives more than one rank; SageMaker's is a list of names."""
    return name == "SM_HOSTS" or number(variables, name) > 1


def in_slurm_step(environment: Variables) -> bool:
    """Return whether `srun` started this process; a batch script has no step, or one of Slurm's."""
    # A batch script always has the number 0.
    if number(environment, "SLURM_PROCID", default=0) > 0:
        return True
    step = number(environment, "SLURM_STEP_ID", default=BATCH_STEPS)
    return "SLURM_PROCID" in environment and step < BATCH_STEPS


def slurm_ranks(environment: Variables) -> Ranks:
    """Return the rank of a task of `srun`; counts of each host are written as `2(x3),1`."""
    # A step may have fewer tasks than its job, and on fewer hosts.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    steps = "SLURM_STEP_TASKS_PER_NODE"
    per_node = steps if steps in environment else "SLURM_TASKS_PER_NODE"
    counted = {size: "1", **environment}
    if number(counted, size) == 1:
        counted |= {"SLURM_LOCALID": "0", per_node: "1"}
    else:
        tasks = tasks_per_node(environment, per_node)
        node = number(environment, "SLURM_NODEID")
        if node >= len(tasks) or sum(tasks) != number(environment, size):
            raise InputError(
                f"{per_node}={environment[per_node]}: does not agree with SLURM_NODEID={node} and "
                f"{size}={environment[size]}; start with srun retinanet train …"
            )
        counted[per_node] = str(tasks[node])
    return checked(
        counted, replace(SLURM, variables=("SLURM_PROCID", size, "SLURM_LOCALID", per_node))
    )


def tasks_per_node(environment: Variables, name: str) -> list[int]:
    """Return counts of each host in order, of a variable such as `2(x3),1`."""
    tasks: list[int] = []
    for part in environment.get(name, "").split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x([1-9]\d{0,5})\))?", part, re.ASCII)
        if match is None:
            raise InputError(
                f"{name}={environment.get(name, '')}: expected a count for each host, such as "
                "2(x3),1; start with srun retinanet train …"
            )
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def checked(variables: Variables, launcher: Launcher) -> Ranks:
    """Return the rank that a launcher's four variables name.

    Raises:
        InputError: One is missing or no number, or they contradict each other.
    """
    names = launcher.variables
    is_alone = names[1] in variables and number(variables, names[1]) == 1
    counted = {**({names[2]: "0", names[3]: "1"} if is_alone else {}), **variables}
    for name in names:
        if name not in counted:
            raise InputError(
                f"{name}: is not set, although {names[0]}={variables[names[0]]} is "
                f"({launcher.name}); set it, or {OTHERS}"
            )
    values = [number(counted, name) for name in names]
    rank, size, local_rank, local_size = values
    limits = ((0, 1, size - 1), (2, 3, local_size - 1), (2, 0, rank), (3, 1, size))
    for part, whole, most in limits:
        if values[part] > most:
            raise InputError(
                f"{names[part]}={values[part]}: does not agree with {names[whole]}="
                f"{values[whole]}; {OTHERS}, which set both"
            )
    return Ranks(
        rank=rank, size=size, local_rank=local_rank, local_size=local_size, launcher=launcher.name
    )


def number(environment: Variables, name: str, *, default: int | None = None) -> int:
    """Return a count from the environment.

    Raises:
        InputError: It is no number, or missing without a default.
    """
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch("[0-9]{1,10}", text):  # a step of Slurm's has ten digits
        problem = f"{name}: is not set" if text is None else f"{name}={text}: is not a count"
        raise InputError(f"{problem}; {OTHERS}, or unset the variables of these")
    return int(text)
