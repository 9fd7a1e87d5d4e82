"""Whether a process that trains alone was meant to be one of several."""

from collections.abc import Mapping

from launch.host.cpu_lists import is_number
from launch.ranks import Ranks
from retinanet.preflight.finding import Finding, warning


def check_launcher(
    ranks: Ranks, environment: Mapping[str, str], *, planned: int
) -> tuple[Finding, ...]:
    """Warn where a batch script of Slurm with several tasks runs the program without `srun`.

    Args:
        ranks: What started this process.
        environment: Its variables.
        planned: Ranks that this host will have.
    """
    tasks = environment.get("SLURM_NTASKS", "")
    if ranks.launcher != "none" or planned > 1 or not is_number(tasks) or int(tasks) < 2:
        return ()
    return (
        warning(
            "ranks",
            f"SLURM_NTASKS={tasks}, and this process trains alone: srun did not start it",
            fix=f"start {tasks} ranks with srun python train.py …, or mpirun -np {tasks}",
        ),
    )
