"""Several hosts on one machine: network namespaces, each with a cable to a common switch.

Each has its own interfaces, host name, /etc/hosts and part of the CPUs; they share files, as the
hosts of a cluster share a network drive. A cable can have a rate and a delay. A namespace lives as
long as a process in it, and here that one ends when the pipe from this process breaks. So nothing
is left behind, not even by a kill.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "eth0"
SWITCH = "switch"
MOST_HOSTS = 254  # Their addresses are 10.0.0.1 to 10.0.0.254
# `cat` keeps the namespaces until its standard input ends. /sys lists the interfaces, and MPI keeps
# the memory of a host's ranks in /dev/shm.
HOST = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
echo ready
exec cat
"""

# Called like ssh: options, a host, and a shell command for it. The environment is empty, as after a
# login.
REMOTE_SHELL = """\
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
case $host in
{hosts}
*) echo "ssh: Could not resolve hostname $host" >&2; exit 255 ;;
esac
exec env -i HOME="$HOME" PATH=/usr/bin:/bin $enter --wd=/ sh -c "$*"
"""


class NoSimulatedHostsError(Exception):
    """The hosts cannot be made; says why, and what would help."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The cable of a host, in both directions."""

    bits_per_second: float
    delay_s: float = 0.0  # One way, from host to host


@dataclass(frozen=True, kw_only=True)
class SimulatedHosts:
    """Hosts, and the commands to enter them."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    enter: tuple[tuple[str, ...], ...]
    """For each host the prefix of a command that runs on it."""
    remote_shell: Path
    """The program that mpirun calls instead of ssh."""
    has_delay: bool = True
    """Whether this kernel can delay packets (its module sch_netem)."""

    def launcher_variables(self) -> dict[str, str]:
        """Return the variables for MPICH, Intel MPI and Open MPI: remote shell, and TCP.

        Without the latter, UCX would see that the hosts share a kernel, and not use the cable.
        """
        shell = str(self.remote_shell)
        return {
            "UCX_TLS": "tcp",
            "FI_PROVIDER": "tcp",
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": shell,
            "I_MPI_HYDRA_BOOTSTRAP": "ssh",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC": shell,
            "PRTE_MCA_plm_ssh_agent": shell,
            "OMPI_MCA_plm_rsh_agent": shell,
        }


@contextmanager
def simulated_hosts(
    names: Sequence[str],
    folder: Path,
    *,
    link: Link | None = None,
    names_are_loopback: bool = False,
) -> Iterator[SimulatedHosts]:
    """Create hosts while the context lasts, with their files in a folder.

    Args:
        names: Of the hosts.
        folder: For their files.
        link: Rate and delay of each cable; None: as fast as this machine.
        names_are_loopback: Whether a host resolves its own name to 127.0.1.1, as Debian configures
            it, or to its address.

    Raises:
        NoSimulatedHostsError: A right or a program is missing.
    """
    if os.geteuid() != 0:
        raise NoSimulatedHostsError("hosts on one machine need root, to make network namespaces")
    for program in ("ip", "tc", "unshare", "nsenter", "taskset"):
        if shutil.which(program) is None:
            fix = "apt-get install iproute2 util-linux"
            raise NoSimulatedHostsError(f"no program {program}; {fix}")
    addresses = tuple(f"10.0.0.{number}" for number in range(1, len(names) + 1))
    with ExitStack() as stack:
        switch = stack.enter_context(_namespaces(SWITCH, Path("/etc/hosts")))
        _run(switch, "ip link add bridge type bridge", "ip link set bridge up")
        enter, has_delay = [], True
        for number, name in enumerate(names):
            lines = ["127.0.0.1 localhost"]
            for other, address in zip(names, addresses, strict=True):
                is_own = other == name and names_are_loopback
                lines.append(f"{'127.0.1.1' if is_own else address} {other}")
            file = folder / f"hosts-of-{name}"
            file.write_text("\n".join(lines) + "\n")
            pid = stack.enter_context(_namespaces(name, file))
            _connect(pid, switch, f"port{number}", addresses[number])
            if link is not None:
                for end in ((pid, INTERFACE), (switch, f"port{number}")):
                    has_delay = _shape(*end, link) and has_delay
            enter.append((*_on_cpus(number, len(names)), *_entering(pid)))
        shell = folder / "remote-shell"
        pairs = zip(names, enter, strict=True)
        cases = [f'{name}) enter="{" ".join(prefix)}" ;;' for name, prefix in pairs]
        shell.write_text(REMOTE_SHELL.format(hosts="\n".join(cases)))
        shell.chmod(0o755)
        yield SimulatedHosts(
            names=tuple(names),
            addresses=addresses,
            enter=tuple(enter),
            remote_shell=shell,
            has_delay=has_delay,
        )


@contextmanager
def _namespaces(name: str, hosts: Path) -> Iterator[int]:
    """Make a host without a cable; yields the number of a process in it."""
    process = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", HOST, "sh", name, str(hosts)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline() != "ready\n":
            reason = process.stderr.read().strip()
            raise NoSimulatedHostsError(f"no network namespaces here: {reason}")
        yield process.pid  # unshare and the shell have become `cat`, one after the other


def _connect(host: int, switch: int, port: str, address: str) -> None:
    """Connect a host to the switch by a virtual cable."""
    cable = f"link add {INTERFACE} netns {host} type veth peer name {port} netns {switch}"
    _command("ip", *cable.split())
    _run(switch, f"ip link set {port} master bridge up")
    _run(
        host,
        f"ip address add {address}/24 dev {INTERFACE}",
        f"ip link set {INTERFACE} up",
    )


QUEUE_S = 0.02  # The longest wait in the queue of a port; packets beyond it are dropped
BURST_S = 0.001


def _shape(pid: int, interface: str, link: Link) -> bool:
    """Limit what leaves an interface; return whether its delay is as asked."""
    rate = f"{link.bits_per_second:.0f}bit"
    # Half of the delay at each of the two ends that a packet leaves.
    delay = f"netem delay {link.delay_s / 2 * 1e6:.0f}us rate {rate} limit 100000"
    replace = ["tc", "qdisc", "replace", "dev", interface, "root"]
    if link.delay_s and _succeeds([*_entering(pid), *replace, *delay.split()]):
        return True
    burst = max(256_000, int(link.bits_per_second / 8 * BURST_S))
    bucket = f"tbf rate {rate} burst {burst} latency {QUEUE_S * 1e3:.0f}ms"
    _command(*_entering(pid), *replace, *bucket.split())
    return not link.delay_s


def _run(pid: int, *commands: str) -> None:
    """Run commands in the namespaces of a host."""
    for command in commands:
        _command(*_entering(pid), *command.split())


def _command(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip()
        raise NoSimulatedHostsError(f"no network of namespaces here: {' '.join(command)}: {reason}")


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _on_cpus(number: int, hosts: int) -> list[str]:
    """Return the prefix that binds a command to the CPUs of a host; few CPUs are shared."""
    cpus = sorted(os.sched_getaffinity(0))
    first, end = number * len(cpus) // hosts, (number + 1) * len(cpus) // hosts
    chosen = cpus[first:end] or [cpus[first]]
    return ["taskset", "--cpu-list", ",".join(map(str, chosen))]


def _entering(pid: int) -> list[str]:
    """Return the prefix that runs a command in the namespaces of a host."""
    return ["nsenter", "--target", str(pid), "--net", "--uts", "--mount"]
