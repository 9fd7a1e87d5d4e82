"""The environment variables of a rank: threads, where they run, and who communicates."""

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from launch.pinning.openmp import installed_openmp
from launch.placement.share import Share

__all__ = [
    "BINDING_VARIABLES",
    "installed_backend",
    "installed_openmp",
    "rank_environment",
    "use_environment",
]

BINDING_VARIABLES = (
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_HW_SUBSET",
)
"""All that tell an OpenMP library where its threads run; some go before others."""

ADVICE = {
    "OMP_NUM_THREADS": "launch.threads={} asks for it",
    "CCL_WORKER_COUNT": "launch.comm_cores decides",
    "CCL_WORKER_AFFINITY": "launch.comm_cores decides",
}
"""Other variables in which the plan goes before the user's environment, and what to use instead."""


def installed_backend() -> str:
    """`ccl` where oneCCL's bindings for torch are installed, else `gloo`; loads neither."""
    return "ccl" if find_spec("oneccl_bindings_for_pytorch") else "gloo"


def rank_environment(
    share: Share, *, openmp: str, backend: str, local_rank: int, local_ranks: int
) -> dict[str, str]:
    """What a rank's environment is given before torch is loaded.

    Args:
        share: The rank's part of its host.
        openmp: `gnu` or `intel`.
        backend: `gloo` or `ccl`.
        local_rank: The rank's number on its host.
        local_ranks: How many ranks the host has.
    """
    variables = {"OMP_NUM_THREADS": str(share.threads)}
    if share.floating:
        variables["OMP_PROC_BIND"] = "false"
    elif openmp == "intel":
        # Thread i on the i-th of the list, "Thread Affinity Interface" in the guide of Intel's
        # compiler: https://www.intel.com/content/www/us/en/docs/cpp-compiler/
        variables["KMP_AFFINITY"] = f"granularity=fine,explicit,proclist=[{joined(share.cpus)}]"
    else:
        # https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fCPU_005fAFFINITY.html
        variables["GOMP_CPU_AFFINITY"] = " ".join(str(cpu) for cpu in share.cpus)
    if openmp == "intel":
        variables["KMP_BLOCKTIME"] = "1"  # [ms] that a thread spins before it sleeps
    if backend == "ccl":
        variables |= ccl_environment(share, local_rank=local_rank, local_ranks=local_ranks)
    return variables


def ccl_environment(share: Share, *, local_rank: int, local_ranks: int) -> dict[str, str]:
    """oneCCL's threads on the rank's cores for communication; without any, on its last core.

    The variable lists the cores of all the host's ranks one after another, and a rank takes its own
    part by its local number. As each rank has an environment of its own, it repeats its own cores.
    Left out, oneCCL would take the last cores of the host, which other ranks compute on. The local
    numbers are given because oneCCL knows those of Intel MPI, and not all launchers'.
    https://uxlfoundation.github.io/oneCCL/env-variables.html
    """
    own = share.comm_cpus or share.cpus[-1:]
    return {
        "CCL_WORKER_COUNT": str(len(own)),
        "CCL_WORKER_AFFINITY": joined(own * local_ranks),
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(local_rank),
        "CCL_LOCAL_SIZE": str(local_ranks),
    }


def joined(cpus: Iterable[int]) -> str:
    """Such as `0,1,2`."""
    return ",".join(str(cpu) for cpu in cpus)


def use_environment(variables: Mapping[str, str], *, bound: bool, launcher: str) -> list[str]:
    """Put a rank's variables into this process's environment; the libraries read them later.

    What says where threads run, and how many there are, is the plan's; else the user's goes first.

    Args:
        variables: As `rank_environment` gives them.
        bound: Whether the rank is bound to cores, so that no other binding may go before it.
        launcher: Who started this rank; torchrun sets OMP_NUM_THREADS=1 by itself.

    Returns:
        A sentence on each variable of the user's that is not used.
    """
    replaced = dict.fromkeys(BINDING_VARIABLES, "launch.pin=false leaves it in force")
    replaced = {**replaced, **ADVICE} if bound else ADVICE
    notes = []
    for name, advice in replaced.items():
        value = os.environ.get(name)
        if value is None or value == variables.get(name):
            continue
        if name in BINDING_VARIABLES:
            del os.environ[name]
        elif name not in variables:
            continue
        if (launcher, name, value) != ("torchrun", "OMP_NUM_THREADS", "1"):
            notes.append(f"{name}={value} of the environment is not used; {advice.format(value)}")
    for name, value in variables.items():
        if name in replaced or name not in os.environ:
            os.environ[name] = value
    return notes
