"""Two hosts on one machine, for tests: network namespaces, each with a cable to a switch.

Each has its own interfaces, host name, /etc/hosts and part of the CPUs; they share files, as the
hosts of a cluster share a network drive. A namespace lives as long as a process in it, and here
that one ends when the pipe from this process breaks. So nothing is left behind, not even by a kill.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import start_program

REPOSITORY = Path(__file__).resolve().parents[2]

NAMES = ("left", "right")
ADDRESSES = ("10.0.0.1", "10.0.0.2")
INTERFACE = "eth0"
SWITCH = "switch"
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


@dataclass(frozen=True)
class TwoHosts:
    """Hosts `left` and `right`, and the commands to enter them."""

    enter: tuple[tuple[str, ...], ...]
    """For each host the prefix of a command that runs on it."""
    remote_shell: Path
    """The program that mpirun calls instead of ssh."""

    @property
    def enter_left(self) -> tuple[str, ...]:
        """The prefix of a command that runs on the first host."""
        return self.enter[0]

    def start_on_left(
        self, arguments: Sequence[str], *, environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Start a process on the first host, in a process group of its own."""
        return self.start_on(0, arguments, environment=environment)

    def start_on(
        self, host: int, arguments: Sequence[str], *, environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Start a process on host 0 (left) or 1, in a process group of its own."""
        command = [*self.enter[host], f"--wd={REPOSITORY}", *arguments]
        environment = {**environment, **self.launcher_variables()}
        return start_program(*command, env=environment, start_new_session=True)

    def cut(self) -> None:
        """Disconnect the cable: packets are lost, and no error is reported."""
        cable = ["ip", "link", "set", INTERFACE, "down"]
        subprocess.run([*self.enter_left, *cable], check=True)

    def drop_everything(self) -> None:
        """Drop the packets of the first host, as a firewall; no error is reported."""
        unknown = ["lladdr", "02:00:00:00:00:99", "dev", INTERFACE, "nud", "permanent"]
        command = ["ip", "neighbour", "replace", ADDRESSES[1], *unknown]
        subprocess.run([*self.enter_left, *command], check=True)

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
def two_hosts(folder: Path, *, names_are_loopback: bool) -> Iterator[TwoHosts]:
    """Create two hosts while the context lasts; skip the test if that is not possible.

    Args:
        folder: For their files.
        names_are_loopback: Whether a host resolves its own name to 127.0.1.1, as Debian configures
            it, or to its address.
    """
    if os.geteuid() != 0:
        pytest.skip("hosts on one machine need root, to make network namespaces")
    for program in ("ip", "unshare", "nsenter", "taskset"):
        if shutil.which(program) is None:
            pytest.skip(f"no program {program}; apt-get install iproute2 util-linux")
    with ExitStack() as stack:
        switch = stack.enter_context(_namespaces(SWITCH, Path("/etc/hosts")))
        _run(switch, "ip link add bridge type bridge", "ip link set bridge up")
        enter = []
        for number, name in enumerate(NAMES):
            lines = ["127.0.0.1 localhost"]
            for other, address in zip(NAMES, ADDRESSES, strict=True):
                is_own = other == name and names_are_loopback
                lines.append(f"{'127.0.1.1' if is_own else address} {other}")
            file = folder / f"hosts-of-{name}"
            file.write_text("\n".join(lines) + "\n")
            pid = stack.enter_context(_namespaces(name, file))
            _connect(pid, switch, f"port{number}", ADDRESSES[number])
            enter.append((*_on_cpus(number), *_entering(pid)))
        shell = folder / "remote-shell"
        pairs = zip(NAMES, enter, strict=True)
        cases = [f'{name}) enter="{" ".join(prefix)}" ;;' for name, prefix in pairs]
        shell.write_text(REMOTE_SHELL.format(hosts="\n".join(cases)))
        shell.chmod(0o755)
        yield TwoHosts(tuple(enter), shell)


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
            pytest.skip(f"no network namespaces here: {reason}")
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


def _run(pid: int, *commands: str) -> None:
    """Run commands in the namespaces of a host."""
    for command in commands:
        _command(*_entering(pid), *command.split())


def _command(*command: str) -> None:
    """Run a command; skip the test if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip()
        pytest.skip(f"no network of namespaces here: {' '.join(command)}: {reason}")


def _on_cpus(number: int) -> list[str]:
    """Return the prefix that binds a command to the CPUs of a host; few CPUs are shared."""
    cpus = sorted(os.sched_getaffinity(0))
    first, end = number * len(cpus) // 2, (number + 1) * len(cpus) // 2
    chosen = cpus[first:end] or [cpus[first]]
    return ["taskset", "--cpu-list", ",".join(map(str, chosen))]


def _entering(pid: int) -> list[str]:
    """Return the prefix that runs a command in the namespaces of a host."""
    return ["nsenter", "--target", str(pid), "--net", "--uts", "--mount"]
