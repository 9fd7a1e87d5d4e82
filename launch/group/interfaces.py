"""Network interfaces: which addresses this host has, and which of them leads to another host."""

import fcntl
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from retinanet.errors import InputError

SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address."""
SECONDS_TO_CONNECT = 3.0


def interface_addresses() -> dict[str, str]:
    """The IPv4 address of each interface that has one, such as {"lo": "127.0.0.1"}."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def own_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where other hosts may reach this one.

    `GLOO_SOCKET_IFNAME`, if it is set, names the interface for other hosts.

    Raises:
        InputError: It names none that has an address.
    """
    addresses = interface_addresses()
    wanted = environment.get("GLOO_SOCKET_IFNAME")
    if wanted:
        if wanted not in addresses:
            raise InputError(
                f"GLOO_SOCKET_IFNAME={wanted}: no such interface with an IPv4 address on "
                f"{socket.gethostname()}; there are {', '.join(addresses)}"
            )
        return (addresses[wanted],)
    return tuple(one for one in addresses.values() if not one.startswith("127."))


def reachable(addresses: tuple[str, ...], port: int) -> str:
    """The first address at which something listens.

    Raises:
        ConnectionError: There is none; names all.
    """
    problems = []
    for address in addresses:
        try:
            socket.create_connection((address, port), timeout=SECONDS_TO_CONNECT).close()
        except OSError as error:
            problems.append(f"{address} ({error})")
            continue
        return address
    raise ConnectionError(f"cannot be reached at port {port} of {', '.join(problems)}")


def interface_towards(address: str, port: int) -> str | None:
    """The interface over which this host reaches an address; None if it cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))  # sends nothing: asks the routing table
        except OSError:
            return None
        own = probe.getsockname()[0]
    return interface_of(own)


def interface_of(address: str) -> str | None:
    """The interface that has the address."""
    names = [name for name, own in interface_addresses().items() if own == address]
    return names[0] if names else None


def network_of_this_process() -> str:
    """Equal for processes that share all interfaces: the same host and network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"
