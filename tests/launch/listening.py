"""The listening sockets of a job."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch.run import parse_address, socket_inodes
from tests.support.processes import processes_with

LISTENING = "0A"  # In the column `st` of /proc/net/tcp


@dataclass(frozen=True)
class Listening:
    """A socket that listens."""

    address: str
    port: int
    inode: str

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of its host can connect."""
        return self.address.startswith("127.") or self.address == "::1"


def listening_sockets(process: int) -> list[Listening]:
    """Return the listening sockets of the network in which a process is."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]:
            place, state, inode = (line.split()[column] for column in (1, 3, 9))
            address, port = place.split(":")
            if state == LISTENING:
                found.append(Listening(parse_address(address), int(port, 16), inode))
    return found


LAUNCHERS = ("mpirun", "mpiexec", "hydra_pmi_proxy", "orterun", "prterun", "prte")
"""Their ports are not this program's, also where ranks inherit them."""


def listening_of_job(text: str) -> set[Listening]:
    """Return the listening sockets of processes with `text` in their command line.

    Those of their launcher are left out.
    """
    found, of_launchers = set(), set[str]()
    for process in processes_with(text):
        with suppress(OSError):  # it has ended meanwhile
            opened = set(socket_inodes(process))
            if Path(f"/proc/{process}/comm").read_text().startswith(LAUNCHERS):
                of_launchers |= opened
            found |= {item for item in listening_sockets(process) if item.inode in opened}
    return {item for item in found if item.inode not in of_launchers}
