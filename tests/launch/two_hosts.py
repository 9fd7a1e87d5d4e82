"""Two hosts on one machine, for tests; see `profiling.bench.simulated_hosts`."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from profiling.bench.simulated_hosts import (
    INTERFACE,
    NoSimulatedHostsError,
    SimulatedHosts,
    simulated_hosts,
)
from tests.support.commands import start_program

REPOSITORY = Path(__file__).resolve().parents[2]

NAMES = ("left", "right")
ADDRESSES = ("10.0.0.1", "10.0.0.2")


@dataclass(frozen=True)
class TwoHosts:
    """Hosts `left` and `right`, and the commands to enter them."""

    hosts: SimulatedHosts

    @property
    def enter_left(self) -> tuple[str, ...]:
        """The prefix of a command that runs on the first host."""
        return self.hosts.enter[0]

    def start_on_left(
        self, arguments: Sequence[str], *, environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Start a process on the first host, in a process group of its own."""
        return self.start_on(0, arguments, environment=environment)

    def start_on(
        self, host: int, arguments: Sequence[str], *, environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Start a process on host 0 (left) or 1, in a process group of its own."""
        command = [*self.hosts.enter[host], f"--wd={REPOSITORY}", *arguments]
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
        """Return the variables that set the remote shell of each mpirun."""
        return self.hosts.launcher_variables()


@contextmanager
def two_hosts(folder: Path, *, names_are_loopback: bool) -> Iterator[TwoHosts]:
    """Create two hosts while the context lasts; skip the test if that is not possible.

    Args:
        folder: For their files.
        names_are_loopback: Whether a host resolves its own name to 127.0.1.1, as Debian configures
            it, or to its address.
    """
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(
                simulated_hosts(NAMES, folder, names_are_loopback=names_are_loopback)
            )
        except NoSimulatedHostsError as error:
            pytest.skip(str(error))
        yield TwoHosts(hosts)
