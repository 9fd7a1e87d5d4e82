"""Where ranks find each other: told by mpirun's own library, or by the environment.

This happens before torch is loaded, because what the ranks of a host tell each other decides where
each is pinned. MPI is a telephone book here and
nothing more: it is finished before torch is loaded.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from launch.group.interfaces import network_of_this_process, own_addresses
from launch.group.mpi_exchange import MPI_LAUNCHERS, exchange, finalize, is_running, start_mpi
from launch.host.cpu_lists import is_number
from launch.ranks import Ranks
from launch.start.hosts import expand_hosts
from retinanet.errors import InputError

JOB_NUMBER = re.compile("[0-9]{1,18}")
LAST_PORT = 65_535
FIRST_PORT, PORTS = 20_000, 10_000
"""Slurm's jobs meet at a port that follows from their number."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """How to reach rank 0, and what the ranks of this host said of themselves."""

    addresses: tuple[str, ...]
    """Of rank 0's host, to be tried in this order."""
    port: int
    listener: socket.socket | None = None
    """Rank 0's, listening at the port already; None: torch is to listen."""
    affinities: tuple[frozenset[int], ...] | None = None
    """The CPUs that each rank of this host was given, in order of local rank, if they said so."""


def part(ranks: Ranks) -> None:
    """Finalize MPI, once all ranks have done what may fail before torch is loaded.

    Raises:
        StartFailedError: Another rank has failed.
    """
    if is_running(ranks):
        exchange(None)
        finalize()


def meet(ranks: Ranks, environment: Mapping[str, str]) -> Meeting:
    """Find out where the ranks meet; all of them call it, and torch is not loaded yet.

    `MASTER_ADDR` and `MASTER_PORT` settle it, as torchrun sets them. Else mpirun's ranks tell each
    other, and srun's compute it from the job's hosts and number.

    Raises:
        InputError: The environment does not say it, or MPI's library does not fit the launcher.
    """
    assert ranks.size > 1
    # torch tells of every attempt to connect and of every peer that is gone, with its stack.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if "MASTER_ADDR" in environment:
        return told_meeting(environment)
    if ranks.launcher in MPI_LAUNCHERS:
        return meet_through_mpi(ranks, environment)
    if ranks.launcher == "slurm":
        return meet_in_slurm(environment)
    raise InputError("MASTER_ADDR: is not set; start with mpirun, srun or torchrun")


def told_meeting(environment: Mapping[str, str]) -> Meeting:
    """Where `MASTER_ADDR` and `MASTER_PORT` say.

    Raises:
        InputError: The one is no address or host that is known here, or the other no port.
    """
    port, address = master_port(environment), environment.get("MASTER_ADDR", "")
    try:
        socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"MASTER_ADDR: {address!r} is no address or host that is known here ({error}); give "
            "that of rank 0's host"
        ) from error
    return Meeting(addresses=(address,), port=port)


def master_port(environment: Mapping[str, str]) -> int:
    """`MASTER_PORT` as a number."""
    text = environment.get("MASTER_PORT", "")
    if not is_number(text) or not 0 < int(text) <= LAST_PORT:
        raise InputError(f"MASTER_PORT: {text!r} is no port, beside MASTER_ADDR; give one")
    return int(text)


def meet_in_slurm(environment: Mapping[str, str]) -> Meeting:
    """The first host of the step, at a port that follows from the job's and the step's number."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    job = environment.get("SLURM_JOB_ID", "")
    if not nodes or not JOB_NUMBER.fullmatch(job):
        raise InputError(
            "SLURM_STEP_NODELIST, SLURM_JOB_ID: not set, as srun does; give MASTER_ADDR and "
            "MASTER_PORT"
        )
    step = environment.get("SLURM_STEP_ID", "0")
    number = int(job) * 16 + (int(step) if JOB_NUMBER.fullmatch(step) else 0)
    return Meeting(addresses=(expand_hosts(nodes)[0],), port=FIRST_PORT + number % PORTS)


def meet_through_mpi(ranks: Ranks, environment: Mapping[str, str]) -> Meeting:
    """Rank 0 opens a port; everybody learns its addresses, and the CPUs of its neighbours.

    Raises:
        InputError: The library that mpi4py finds is not the launcher's.
        StartFailedError: Another rank has failed.
    """
    start_mpi(ranks, environment)
    listener = listen() if ranks.is_first else None
    network = network_of_this_process()
    entry = (listener.getsockname()[1], own_addresses(environment), network) if listener else None
    own = (socket.gethostname(), network)
    about = (entry, own, ranks.local_rank, frozenset(os.sched_getaffinity(0)))
    said = exchange(about)
    port, addresses, network_of_first = said[0][0]
    if network == network_of_first:
        addresses = ("127.0.0.1", *addresses)
    neighbours = sorted((rank, cpus) for _, host, rank, cpus in said if host == own)
    return Meeting(
        addresses=addresses,
        port=port,
        listener=listener,
        affinities=tuple(cpus for _, cpus in neighbours),
    )


def listen() -> socket.socket:
    """A port of all addresses that nobody can take before torch does."""
    listener = socket.create_server(("", 0), backlog=1024)
    listener.set_inheritable(False)
    return listener
