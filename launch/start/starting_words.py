"""How a user types what has started these ranks, without the options of the cluster at hand."""

from launch.ranks import Ranks


def starting_words(ranks: Ranks) -> list[str]:
    """What comes before `python`: such as `mpirun -np 8`; nothing for one process."""
    if ranks.launcher == "none":
        return []
    if ranks.launcher == "slurm":
        return ["srun", "-n", str(ranks.size)]
    if ranks.launcher == "torchrun":
        return ["torchrun", f"--nproc-per-node={ranks.local_size}"]
    return ["mpirun", "-np", str(ranks.size)]
