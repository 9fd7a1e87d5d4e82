"""How a user types what starts ranks, without the options of the cluster at hand."""

from launch.ranks import Ranks

ANY_RANKS_OPTION = "mpirun -np, or --np"
"""Of mpirun and of this program's own commands."""


def starting_words(ranks: Ranks) -> list[str]:
    """What comes before `python`: such as `mpirun -np 8`; nothing for one process."""
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
