import sys
from pathlib import Path

import pytest

from common.errors import InputError
from launch.ranks import LAUNCHERS, Ranks, read_ranks
from tests.support.commands import run_program

BIN = Path(sys.executable).parent

MPICH = {
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "PMI_FD": "9",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
    "PMI_HOSTNAME": "vm",
    "HYDI_CONTROL_FD": "7",
}
INTEL_MPI = {
    "HYDRA_BSTRAP_LAUNCHER": "ssh",
    "I_MPI_HYDRA_UUID": "ed4b0000-6ba1-39ee-ce60-0600af1c1033",
    "I_MPI_INFO_LCPU": "2",
    "I_MPI_PIN_INFO": "1",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_UNIVERSE_SIZE": "4",
    "PMIX_RANK": "3",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
}
SRUN = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
MVAPICH2 = {  # by mpirun_rsh
    "MV2_COMM_WORLD_RANK": "3",
    "MV2_COMM_WORLD_SIZE": "4",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    "PMI_ID": "3",
    "PMI_PORT": "node1:40000",
}
HOROVOD = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
FLUX = {
    "FLUX_TASK_RANK": "3",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_JOB_SIZE": "4",
    "FLUX_JOB_NNODES": "2",
}
PALS_WITH_PMIX = {
    "PALS_RANKID": "3",
    "PALS_NODEID": "1",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
PALS = {**PALS_WITH_PMIX, "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1"}
ON_EACH_HOST = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}  # what a user adds
TRAINJOB = {"PET_NNODES": "4", "PET_NODE_RANK": "3", "PET_NPROC_PER_NODE": "auto"}
AWS_BATCH = {"AWS_BATCH_JOB_NUM_NODES": "4", "AWS_BATCH_JOB_NODE_INDEX": "3"}
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2","algo-3","algo-4"]', "SM_CURRENT_HOST": "algo-4"}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "12",
    "SLURM_NTASKS": "8",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
ALONE = Ranks(rank=0, size=1, local_rank=0, local_size=1, launcher="none")


STARTED = [
    ("mpich", MPICH),
    ("intel-mpi", INTEL_MPI),
    ("open-mpi", OPEN_MPI),
    ("torchrun", TORCHRUN),
    ("slurm", SRUN),
    ("slurm", {**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9"}),  # --mpi=pmi2
    ("slurm", {**SRUN, "PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.12.0"}),  # --mpi=pmix
    ("slurm", {**SRUN, **PALS}),  # on a Cray
    ("mvapich2", MVAPICH2),
    ("horovod", HOROVOD),
    ("jsrun", JSRUN),
    ("open-mpi", {**JSRUN, **OPEN_MPI}),  # Spectrum MPI
    ("flux", FLUX),
    ("flux", {**FLUX, "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9"}),
    ("mpich", {**FLUX, **MPICH}),
    ("pals", PALS),
    ("pals", {**PALS_WITH_PMIX, "WORLD_SIZE": "4"}),
    ("prun", {"PMIX_RANK": "3", "WORLD_SIZE": "4", **ON_EACH_HOST}),
    ("aprun", {"ALPS_APP_PE": "3", "WORLD_SIZE": "4", **ON_EACH_HOST}),
    ("trainjob", {**TRAINJOB, **ON_EACH_HOST}),
    ("torchrun", {**TRAINJOB, **TORCHRUN}),
    ("torchrun", {"PMIX_RANK": "3", "RANK": "3", "WORLD_SIZE": "4", **ON_EACH_HOST}),
    # The innermost launcher counts: mpirun starts its daemons with srun, one a host.
    ("mpich", {**SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", **MPICH}),
    ("open-mpi", {**SRUN, "SLURM_PROCID": "1", **OPEN_MPI}),
    ("mpich", {**BATCH_SCRIPT, **MPICH}),
    ("torchrun", {**SRUN, "SLURM_PROCID": "1", **TORCHRUN}),
    ("torchrun", {**MPICH, "PMI_RANK": "1", **TORCHRUN}),
    ("open-mpi", {"RANK": "1", "WORLD_SIZE": "2", **OPEN_MPI}),  # a cluster's job with mpirun
]
ONE_ON_EACH_HOST = [
    ("torchrun", {"RANK": "3", "WORLD_SIZE": "4"}),
    ("trainjob", TRAINJOB),
    ("aws-batch", AWS_BATCH),
    ("sagemaker", SAGEMAKER),
]
ONE_RANK = [
    ("slurm", {**BATCH_SCRIPT, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}),
    ("mpich", {"PMI_RANK": "0", "PMI_SIZE": "1"}),
    ("torchrun", {"RANK": "0", "WORLD_SIZE": "1"}),
]


@pytest.mark.parametrize(
    ("place", "launcher", "environment"),
    [
        *(((3, 4, 1, 2), *case) for case in STARTED),
        *(((3, 4, 0, 1), *case) for case in ONE_ON_EACH_HOST),
        *(((0, 1, 0, 1), *case) for case in ONE_RANK),
    ],
)
def test_variables_of_each_launcher(
    place: tuple[int, int, int, int], launcher: str, environment: dict[str, str]
) -> None:
    ranks = read_ranks({"HOME": "/root", **environment})
    rank, size, local_rank, local_size = place
    assert ranks == Ranks(
        rank=rank, size=size, local_rank=local_rank, local_size=local_size, launcher=launcher
    )
    assert ranks.is_first == (rank == 0)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "1"},
        {"I_MPI_ROOT": "/opt/intel", "OMP_NUM_THREADS": "4"},
        {"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"},
        BATCH_SCRIPT,
        {**BATCH_SCRIPT, "SLURM_STEP_ID": "4294967291"},  # the batch script as a step
    ],
)
def test_process_without_a_launcher_is_one_rank(environment: dict[str, str]) -> None:
    ranks = read_ranks(environment)
    assert ranks == ALONE
    assert ranks.is_first


def test_the_pages_name_every_variable() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ranks.md").read_text(encoding="utf-8")
    names = {name for launcher in LAUNCHERS for name in launcher.variables}
    assert not [name for name in names if f"`{name}`" not in page]


@pytest.mark.parametrize(("rank", "node", "local_size"), [(0, 0, 2), (5, 2, 2), (6, 3, 1)])
def test_slurm_hosts_have_different_numbers_of_tasks(rank: int, node: int, local_size: int) -> None:
    environment = {
        "SLURM_STEP_ID": "3",
        "SLURM_NTASKS": "7",
        "SLURM_TASKS_PER_NODE": "2(x3),1",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0",
    }
    ranks = read_ranks(environment)
    assert (ranks.rank, ranks.size, ranks.local_size) == (rank, 7, local_size)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({**MPICH, "PMI_SIZE": "four"}, "PMI_SIZE=four: is not a count"),
        ({**MPICH, "PMI_RANK": "-1"}, "PMI_RANK=-1: is not a count"),
        ({**MPICH, "PMI_RANK": "4"}, "PMI_RANK=4: does not agree with PMI_SIZE=4"),
        ({**MPICH, "MPI_LOCALRANKID": ""}, "MPI_LOCALRANKID: is not set"),
        ({**INTEL_MPI, "MPI_LOCALNRANKS": "5"}, "MPI_LOCALNRANKS=5: does not agree with PMI_SIZE"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"},
            "OMPI_COMM_WORLD_LOCAL_RANK=2: does not agree with OMPI_COMM_WORLD_LOCAL_SIZE=2",
        ),
        ({**TORCHRUN, "RANK": "0"}, "LOCAL_RANK=1: does not agree with RANK=0"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": ""}, "LOCAL_WORLD_SIZE: is not set"),
        ({"RANK": "0"}, "WORLD_SIZE: is not set"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK: is not set"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE=8: RANK is not set; unset WORLD_SIZE"),
        ({"PMI_SIZE": "2"}, "PMI_SIZE=2: PMI_RANK is not set; unset PMI_SIZE"),
        ({**SRUN, "SLURM_NODEID": "2"}, r"SLURM_STEP_TASKS_PER_NODE=2\(x2\): does not agree"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2x2"}, "SLURM_STEP_TASKS_PER_NODE=2x2: expected"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, "SLURM_TASKS_PER_NODE=: expected a count"),
        (
            {"PMI_ID": "1", "PMI_PORT": "node1:40000"},
            r"WORLD_SIZE: is not set, although PMI_ID=1 is \(mpirun -pmi-port\)",
        ),
        (PALS_WITH_PMIX, "WORLD_SIZE: is not set, although PALS_RANKID=3 is"),
        ({"PMIX_RANK": "0"}, r"WORLD_SIZE: is not set, although PMIX_RANK=0 is \(prun\)"),
        ({"ALPS_APP_PE": "0"}, r"WORLD_SIZE: is not set, although ALPS_APP_PE=0 is \(aprun\)"),
        ({"PMIX_RANK": "1", "WORLD_SIZE": "4"}, "LOCAL_RANK: is not set, although PMIX_RANK=1 is"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2: OMPI_COMM_WORLD_RANK is not set"),
        ({"MV2_COMM_WORLD_SIZE": "2"}, "MV2_COMM_WORLD_SIZE=2: MV2_COMM_WORLD_RANK is not set"),
        ({"PET_NNODES": "2"}, "PET_NNODES=2: PET_NODE_RANK is not set; unset PET_NNODES"),
        ({**TRAINJOB, "PET_NNODES": "1:4"}, "PET_NNODES=1:4: is not a count"),
        ({"AWS_BATCH_JOB_NUM_NODES": "2"}, "AWS_BATCH_JOB_NUM_NODES=2: AWS_BATCH_JOB_NODE_INDEX"),
        ({"SM_HOSTS": '["a","b"]'}, "SM_HOSTS=.*: SM_CURRENT_HOST is not set"),
        ({**SAGEMAKER, "SM_CURRENT_HOST": "algo-5"}, "SM_CURRENT_HOST=algo-5: is not one"),
        ({**SAGEMAKER, "SM_HOSTS": "[" * 100_000}, "SM_CURRENT_HOST=algo-4: is not one"),
        ({**FLUX, "FLUX_JOB_SIZE": "5"}, "FLUX_JOB_NNODES=2: does not divide FLUX_JOB_SIZE=5"),
        ({**FLUX, "FLUX_JOB_NNODES": "0"}, "FLUX_JOB_NNODES=0: does not divide FLUX_JOB_SIZE=4"),
        # Three ranks on one host and one on the other.
        ({**FLUX, "FLUX_TASK_LOCAL_ID": "2"}, "FLUX_TASK_LOCAL_ID=2: does not agree with FLUX_JOB"),
    ],
)
def test_contradicting_variables_are_refused_by_name(
    environment: dict[str, str], expected: str
) -> None:
    with pytest.raises(InputError, match=f"^{expected}") as caught:
        read_ranks(environment)
    assert "\n" not in str(caught.value)


PROGRAM = """
import os
from launch.ranks import read_ranks
os.write(1, (repr(read_ranks(os.environ)) + "\\n").encode())  # a line is whole
"""


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("mpich", ["mpirun", "-np", "2", sys.executable, "-c", PROGRAM]),
        pytest.param(
            "torchrun",
            ["torchrun", "--nproc-per-node=2", "--no-python", sys.executable, "-c"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_ranks_of_a_real_launcher(launcher: str, command: list[str]) -> None:
    if launcher == "torchrun":
        command = [*command, PROGRAM]
    elif not (BIN / "mpirun").exists():
        pytest.skip("MPICH is not installed in this environment")
    command[0] = str(BIN / command[0])
    done = run_program(*command, check=True)
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("Ranks"))
    assert lines == [
        repr(Ranks(rank=rank, size=2, local_rank=rank, local_size=2, launcher=launcher))
        for rank in (0, 1)
    ]
