"""Which hosts of a job have started: those from which its launcher has a connection.

A host starts when ssh has reached it and its helper of mpirun has connected back. Where a firewall
drops the second, mpirun waits for ever and prints nothing.
"""

import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from launch.group.interfaces import interface_addresses
from launch.host.proc_files import read_status, read_text
from launch.start.process_tree import children_of

MOST_HOSTS = 32
"""With more, launchers connect hosts as a tree, and not each to the first."""
NOTICE_S = 30.0
LIMIT_S = 300.0
"""A note on hosts that have not started is printed after the one, and mpirun ended after the other.
"""
ESTABLISHED = "01"
"""State of a connection in /proc/net/tcp."""
REMOTE_SHELLS = ("ssh", "rsh")
"""Their connections show that a host is reached, not that its helper reaches this one."""


class StartedHosts:
    """Watches the start of a job on named hosts, until all of them have started."""

    def __init__(self, launcher: int, hosts: Sequence[str]) -> None:
        """Begin to watch.

        Args:
            launcher: mpirun's process number.
            hosts: As the user has named them; more than `MOST_HOSTS` are not watched.
        """
        self._launcher = launcher
        self._hosts = hosts if len(hosts) <= MOST_HOSTS else ()
        self._began = time.monotonic()
        self._is_noted = False

    def overdue(self) -> tuple[str, ...]:
        """Return the hosts that have not started within the limit; print a note before."""
        elapsed = time.monotonic() - self._began
        if not self._hosts or elapsed < NOTICE_S:
            return ()
        missing = missing_hosts(self._launcher, self._hosts)
        if not missing:
            self._hosts = ()
            return ()
        if not self._is_noted:
            self._is_noted = True
            print(
                f"note: {named(missing)} {NOTICE_S:g} s after mpirun, which is "
                f"ended after {LIMIT_S:g} s: {where_to_look(missing)}",
                file=sys.stderr,
                flush=True,
            )
        return missing if elapsed >= LIMIT_S else ()


def named(hosts: Sequence[str]) -> str:
    """Return `host a has not started`, or the same of several."""
    if len(hosts) == 1:
        return f"host {hosts[0]} has not started"
    return f"hosts {', '.join(hosts)} have not started"


def where_to_look(hosts: Sequence[str]) -> str:
    """Return what the user can check."""
    return (
        f"check that `ssh {hosts[0]} true` works, and that no firewall blocks TCP ports from "
        f"there to {socket.gethostname()} (mpirun listens at a port of its own choice)"
    )


def missing_hosts(launcher: int, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts from which nothing is connected with the launcher on this host.

    A host may connect from an address that its name does not have; such connections count for any.
    """
    own = {*interface_addresses().values(), "127.0.0.1", "127.0.1.1", "::1"}
    addresses = {host: addresses_of(host) for host in hosts}
    peers = [peer for peer in connected(launcher) if peer not in own]
    missing = tuple(
        host for host, known in addresses.items() if not known & own and not known & {*peers}
    )
    known = set().union(*addresses.values())
    others = [peer for peer in peers if peer not in known]
    return missing if len(others) < len(missing) else ()


def addresses_of(host: str) -> set[str]:
    """Return what the name means here; empty if nothing."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return set()


def connected(launcher: int) -> Iterator[str]:
    """Yield the other end's address of each connection of the launcher and what it has started."""
    sockets = {inode for process in tree(launcher) for inode in sockets_of(process)}
    for table in ("tcp", "tcp6"):
        for line in read_text(Path(f"/proc/{launcher}/net/{table}")).splitlines()[1:]:
            fields = line.split()
            if fields[3] == ESTABLISHED and fields[9] in sockets:
                yield address_of(fields[2].partition(":")[0])


def tree(process: int) -> Iterator[int]:
    """Yield a process and all below it, without remote shells."""
    if read_status(Path(f"/proc/{process}/status")).get("Name") not in REMOTE_SHELLS:
        yield process
        for child in children_of(process):
            yield from tree(child)


def sockets_of(process: int) -> Iterator[str]:
    """Yield the kernel's numbers of a process's sockets."""
    with suppress(OSError):  # it has ended, or is not ours
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


def address_of(text: str) -> str:
    """Return an address of /proc/net/tcp, whose 32-bit words are little-endian, as it is written.

    An IPv4 address within IPv6 is written as IPv4.
    """
    raw = bytes.fromhex(text)
    packed = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
