"""Whether the hosts that a user names are known here, before mpirun tries them."""

import socket
import subprocess
from collections.abc import Mapping, Sequence

from retinanet.errors import InputError

OTHER_LAUNCHERS = (
    "HYDRA_LAUNCHER",
    "I_MPI_HYDRA_BOOTSTRAP",
    "OMPI_MCA_plm",
    "PRTE_MCA_plm",
    "LSB_JOBID",
    "PBS_JOBID",
    "SLURM_JOB_ID",
)
"""Variables with which mpirun does not start hosts by plain ssh: names may be of other kinds."""
NOT_KNOWN = (socket.EAI_NONAME, socket.EAI_NODATA)
"""Answers of name servers; others mean that none has answered."""
SECONDS = 10


def require_known_hosts(
    hosts: Sequence[str], environment: Mapping[str, str], *, option: str
) -> None:
    """See that every name is an address, a known host or one of ssh's configuration.

    Args:
        hosts: The names.
        environment: This process's variables; some say that names are not ssh's.
        option: Where the user has named them.

    Raises:
        InputError: Some are not; names them.
    """
    if any(name.startswith(OTHER_LAUNCHERS) for name in environment):
        return
    unknown = [host for host in hosts if not is_known(host) and not is_known_to_ssh(host)]
    if unknown:
        raise InputError(
            f"{option}: {', '.join(unknown)}: not known on {socket.gethostname()}; check the "
            "spelling, or add the name to /etc/hosts or ~/.ssh/config"
        )


def is_known(host: str) -> bool:
    """Whether the name has an address, or nobody can say."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno not in NOT_KNOWN
    except UnicodeError:
        return False
    return True


def is_known_to_ssh(host: str) -> bool:
    """Whether ssh's configuration has another name for it, or a way there."""
    try:
        done = subprocess.run(
            ["ssh", "-G", host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    name = settings.get("hostname", host)
    proxies = {settings.get(way, "none") for way in ("proxycommand", "proxyjump")}
    return proxies != {"none"} or (name != host and is_known(name))
