"""The helper that MPICH's and Intel MPI's mpirun start on their own host, and that ends first."""

import time
from pathlib import Path

from launch.host.proc_files import read_status
from launch.start.process_tree import children_of

NAME = "hydra_pmi_proxy"
DEPTH = 3
"""Intel MPI's is started by a helper of mpiexec.hydra, which is started by the script mpirun."""


class LocalHelper:
    """Notices an mpirun that outlives its ranks.

    Without a network mpirun would wait for ever for the helpers of other hosts to say goodbye.
    """

    def __init__(self, launcher: int) -> None:
        """`launcher`: mpirun's process number."""
        self._launcher = launcher
        self._helpers: list[int] = []
        self._gone_since: float | None = None

    def seconds_gone(self) -> float:
        """For how long there has been none on this host after there was one; 0 until then."""
        if not self._helpers:
            self._helpers = helpers_below(self._launcher, depth=DEPTH)
        if not self._helpers or any(map(is_helper, self._helpers)):
            return 0.0
        self._gone_since = self._gone_since or time.monotonic()
        return time.monotonic() - self._gone_since


def helpers_below(process: int, *, depth: int) -> list[int]:
    """Process numbers among the children, and theirs."""
    children = children_of(process)
    found = [child for child in children if is_helper(child)]
    if found or depth == 1:
        return found
    return [one for child in children for one in helpers_below(child, depth=depth - 1)]


def is_helper(process: int) -> bool:
    """Whether it is one and has not ended."""
    status = read_status(Path(f"/proc/{process}/status"))
    return status.get("Name") == NAME and status["State"][0] not in "ZX"
