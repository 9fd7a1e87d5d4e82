"""Two hosts on one machine: two network namespaces with a cable between them.

Each has its own interfaces, host name, /etc/hosts and half of the CPUs; they share files, as the
hosts of a cluster share a network drive. A namespace lives as long as a process in it, and here
that one ends when the pipe from the tests breaks. So nothing is left behind, not even by a kill.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import run_program, start_program

REPOSITORY = Path(__file__).resolve().parents[2]

NAMES = ("left", "right")
ADDRESSES = ("10.0.0.1", "10.0.0.2")
"""Addresses of the two ends of the cable, which is in no other network."""

# `cat` keeps the namespaces until its standard input ends. /sys lists the interfaces.
HOST = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t sysfs sysfs /sys
ip link set lo up
echo ready
exec cat
"""

# Called like ssh: options, a host, and a shell command for it. The environment is empty, as after a
# login.
REMOTE_SHELL = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
case $host in
left) enter="ENTER_LEFT" ;;
right) enter="ENTER_RIGHT" ;;
*) echo "ssh: Could not resolve hostname $host" >&2; exit 255 ;;
esac
exec env -i HOME="$HOME" PATH=/usr/bin:/bin $enter --wd=/ sh -c "$*"
"""


@dataclass(frozen=True)
class TwoHosts:
    """Hosts `left` and `right`, and the commands to enter them."""

    enter_left: tuple[str, ...]
    """The prefix of a command that runs on the first host."""
    remote_shell: Path
    """The program that mpirun calls instead of ssh."""

    def start_on_left(
        self, arguments: Sequence[str], *, environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Start a process on the first host, in a process group of its own."""
        command = [*self.enter_left, f"--wd={REPOSITORY}", *arguments]
        environment = {**environment, **self.launcher_variables()}
        return start_program(*command, env=environment, start_new_session=True)

    def cut(self) -> None:
        """Disconnect the cable: packets are lost, and no error is reported."""
        cable = ["ip", "link", "set", "eth0", "down"]
        subprocess.run([*self.enter_left, *cable], check=True)

    def drop_everything(self) -> None:
        """Drop the packets of the first host, as a firewall; no error is reported."""
        unknown = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"]
        command = ["ip", "neighbour", "replace", ADDRESSES[1], *unknown]
        subprocess.run([*self.enter_left, *command], check=True)

    def launcher_variables(self) -> dict[str, str]:
        """Return the variables that set the remote shell of MPICH and Intel MPI."""
        return {
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self.remote_shell),
            "I_MPI_HYDRA_BOOTSTRAP": "ssh",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(self.remote_shell),
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
        pytest.skip("two hosts on one machine need root, to make network namespaces")
    for program in ("ip", "unshare", "nsenter", "taskset"):
        if shutil.which(program) is None:
            pytest.skip(f"no program {program}; apt-get install iproute2 util-linux")
    with ExitStack() as stack:
        files = [hosts_file(folder, number, names_are_loopback) for number in (0, 1)]
        pids = tuple(
            stack.enter_context(namespaces(name, file))
            for name, file in zip(NAMES, files, strict=True)
        )
        connect(pids)
        left, right = (
            [*on_cpus(half), *entering(pid)] for half, pid in zip(halves(), pids, strict=True)
        )
        remote_shell = folder / "remote-shell"
        text = REMOTE_SHELL.replace("ENTER_LEFT", " ".join(left))
        remote_shell.write_text(text.replace("ENTER_RIGHT", " ".join(right)))
        remote_shell.chmod(0o755)
        yield TwoHosts(tuple(left), remote_shell)


def hosts_file(folder: Path, number: int, names_are_loopback: bool) -> Path:
    """Write the /etc/hosts of a host."""
    other = 1 - number
    address = "127.0.1.1" if names_are_loopback else ADDRESSES[number]
    path = folder / f"hosts-of-{NAMES[number]}"
    path.write_text(
        f"127.0.0.1 localhost\n{address} {NAMES[number]}\n{ADDRESSES[other]} {NAMES[other]}\n"
    )
    return path


@contextmanager
def namespaces(name: str, hosts: Path) -> Iterator[int]:
    """A host without a cable, as the number of a process in it."""
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
            pytest.skip(f"no network namespaces here: {process.stderr.read().strip()}")
        yield process.pid  # unshare and the shell have become `cat`, one after the other


def connect(pids: Sequence[int]) -> None:
    """Connect two hosts by a virtual cable."""
    ends = [str(pid) for pid in pids]
    cable = f"link add eth0 netns {ends[0]} type veth peer name eth0 netns {ends[1]}"
    done = run_program("ip", *cable.split())
    if done.returncode != 0:
        pytest.skip(f"no virtual cable between network namespaces here: {done.stderr.strip()}")
    for pid, address in zip(pids, ADDRESSES, strict=True):
        for arguments in (f"address add {address}/24 dev eth0", "link set eth0 up"):
            subprocess.run([*entering(pid), "ip", *arguments.split()], check=True)


def halves() -> tuple[list[int], list[int]]:
    """Return the CPUs of each host; a single CPU is shared."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    return cpus[:half] or cpus, cpus[half:]


def on_cpus(cpus: Sequence[int]) -> list[str]:
    """Return the prefix that binds a command to these CPUs."""
    return ["taskset", "--cpu-list", ",".join(map(str, cpus))]


def entering(pid: int) -> list[str]:
    """Return the prefix that runs a command in the namespaces of a host."""
    return ["nsenter", "--target", str(pid), "--net", "--uts", "--mount"]
