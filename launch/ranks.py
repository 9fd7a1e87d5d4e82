"""Which rank of how many this process is, as the launcher that started it says."""

from collections.abc import Mapping

from retinanet.errors import InputError

SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE", "SLURM_NTASKS")
"""Open MPI, MPICH and Intel MPI, torchrun, srun."""


def refuse_several_ranks(environment: Mapping[str, str]) -> None:
    """Stop a run that would be N unconnected trainings in one folder.

    `SLURM_NTASKS` alone is also set in a batch script that starts one process, so it counts only
    where `srun` has numbered this task.

    Raises:
        InputError: A launcher started more than one rank.
    """
    for variable in SIZE_VARIABLES:
        if variable == "SLURM_NTASKS" and "SLURM_PROCID" not in environment:
            continue
        size = environment.get(variable, "1")
        if size.isdigit() and int(size) > 1:
            raise InputError(
                f"{variable}={size}: training on several ranks is not available yet; "
                "start one process: python train.py …"
            )
