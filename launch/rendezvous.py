"""The rendezvous of a job's ranks before torch is loaded, and early errors that end them.

Ranks meet through mpirun's own library, or as the environment directs. If gradients go between
hosts by MPI, it stays initialized until the job ends; else it is finalized before torch is loaded.

An mpirun of MPICH kills all ranks, and its status is 9, where one of them ends without having
finalized MPI. Finalizing is collective. So a rank that cannot start takes part in the next exchange
with its failure; then all finalize MPI and exit with the same status, and rank 0 prints the error.
"""

import errno
import fcntl
import importlib
import io
import ipaddress
import os
import re
import secrets
import socket
import struct
import sys
import time
import traceback
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from common.errors import InputError, exit_code_for, format_error
from common.machine import ancestors
from launch.hosts import expand_hosts
from launch.messages import checked_length, decode, encode
from launch.mpirun import HELPER
from launch.ranks import MPI_LAUNCHERS, Ranks
from launch.topology import is_number
from launch.waiting import AGREEMENT_S, ANSWER_S, timers, write_line

MODULE = "mpi4py.MPI"
FACTS_OF_MPI = tuple[tuple[str, str], int, frozenset[int]]
"""A rank's host and network, its local rank, and its CPUs."""
LOCALHOST = "127.0.0.1"
FIREWALL = "that no firewall blocks TCP ports between the hosts"
CONNECTIONS_ADVICE = f"check {FIREWALL}, or name the network in GLOO_SOCKET_IFNAME"
JOB_NUMBER = re.compile("[0-9]{1,18}")
LAST_PORT = 65_535
FIRST_PORT, PORTS = 20_000, 10_000  # Slurm's jobs meet at a port that follows from their number


Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """The address of rank 0, and the CPUs of the ranks of this host."""

    address: str  # Of rank 0's host
    port: int
    listener: socket.socket | None = None
    """Rank 0's, listening at the port already."""
    secret: bytes = field(default=b"", repr=False)
    """The job's, see `launch.secret`, if MPI has carried it."""
    affinities: tuple[frozenset[int], ...] | None = None
    """The CPUs that each rank of this host was given, in order of local rank, if they are known."""
    hosts: int | None = None
    """The number of hosts, if MPI is running."""


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How gradients go between hosts."""

    name: str  # `mpi` or `gloo`; `none` for ranks of one host, by whatever launcher
    reason: str


ONE_HOST = Transport(name="none", reason="one host")


def make_rendezvous(ranks: Ranks, environment: Mapping[str, str]) -> Rendezvous:
    """Return the rendezvous of the ranks; called by all of them, before torch is loaded.

    `MASTER_ADDR` and `MASTER_PORT` settle it, as torchrun sets them. Else mpirun's ranks exchange
    it, and srun's compute it from the job's hosts and number.

    Raises:
        InputError: The environment does not name it, or MPI's library does not fit the launcher.
    """
    assert ranks.size > 1
    # torch prints every attempt to connect and every peer that is gone, with its stack.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if ranks.launcher == "trainjob":  # torchrun's options, as variables
        pet = {name: environment.get(f"PET_{name}") for name in ("MASTER_ADDR", "MASTER_PORT")}
        environment = {name: value for name, value in pet.items() if value} | dict(environment)
    if "MASTER_ADDR" in environment:
        return master_rendezvous(environment)
    if ranks.launcher == "slurm":
        return slurm_rendezvous(environment)
    if ranks.launcher not in MPI_LAUNCHERS:
        raise InputError(
            f"MASTER_ADDR: is not set, and {ranks.launcher} does not tell its ranks where rank 0 "
            "is; set it to the address of rank 0's host and MASTER_PORT to a free port there, on "
            "all ranks, or start with mpirun, srun or torchrun"
        )
    start_mpi(ranks, environment)
    return mpi_rendezvous(ranks, environment)


def mpi_rendezvous(ranks: Ranks, environment: Mapping[str, str]) -> Rendezvous:
    """Return the rendezvous on which mpirun's ranks agree by MPI.

    Raises:
        InputError: The hosts cannot reach rank 0.
    """
    host = (socket.gethostname(), network_of_this_process())
    facts = exchange((host, ranks.local_rank, frozenset(os.sched_getaffinity(0))), FACTS_OF_MPI)
    networks = [network for (_, network), _, _ in facts]
    address, listens_at = LOCALHOST, LOCALHOST
    if len(set(networks)) > 1:
        address, listens_at = address_for_all(ranks, networks, environment)
    listener = meeting = None
    if ranks.is_first:
        # Rank 0 keeps listening and hands the socket to torch: another process could take a port
        # that was only tested before torch opens it.
        listener = socket.create_server((listens_at, 0), backlog=1024)
        listener.set_inheritable(False)
        meeting = (listener.getsockname()[1], secrets.token_hex(32))
    meetings = exchange(meeting, tuple[int, str] | None)
    assert meetings[0] is not None
    port, secret = meetings[0]
    neighbours = sorted((rank, cpus) for their_host, rank, cpus in facts if their_host == host)
    affinities = tuple(cpus for _, cpus in neighbours)
    return Rendezvous(
        address=address,
        port=port,
        listener=listener,
        secret=secret.encode(),
        affinities=affinities,
        hosts=len({host for host, _, _ in facts}),
    )


def address_for_all(
    ranks: Ranks, networks: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, str]:
    """Return rank 0's address for this rank, and the one at which rank 0 is to listen.

    A host has several addresses, and others may not reach all of them. So they try a port that
    accepts nothing, and rank 0 then listens only at the address that all have reached.
    """
    probe = socket.create_server(("", 0), backlog=1024) if ranks.is_first else None
    with probe or nullcontext():
        offered = (probe.getsockname()[1], host_addresses(environment)) if probe else None
        offers = exchange(offered, tuple[int, tuple[str, ...]] | None)
        assert offers[0] is not None
        port, addresses = offers[0]
        reached = None
        if networks[ranks.rank] != networks[0]:
            try:
                reached = reachable(addresses, port)
            except ConnectionError as error:
                raise InputError(
                    f"rank {ranks.rank} on {socket.gethostname()}: rank 0 {error}; "
                    f"{CONNECTIONS_ADVICE}"
                ) from error
        places = set(exchange(reached, str | None)) - {None}
    if len(places) == 1:
        [place] = places
        assert place is not None
        return place, place
    return reached or LOCALHOST, ""


def settle_transport(
    ranks: Ranks, rendezvous: Rendezvous | None, backend: str
) -> tuple[Transport, tuple[str, ...]]:
    """Choose how gradients go between hosts, with notes; finalize MPI unless it is used for that.

    All ranks call it, once they have done what may fail before torch is loaded. `backend` is
    `distributed.backend`.

    Raises:
        InputError: MPI is configured, and the ranks were not started by one.
        StartFailedError: Another rank has failed.
    """
    if rendezvous is None:
        return ONE_HOST, ()
    if not is_running(ranks):
        by_variables = ranks.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in os.environ
        starter = "RANK and WORLD_SIZE" if by_variables else ranks.launcher
        reason = f"started by {starter}, not by an MPI's mpirun"
        if ranks.launcher in MPI_LAUNCHERS:
            reason = "MASTER_ADDR is set, so that MPI is not started"
        if backend == "mpi":
            fix = "start with mpirun and without MASTER_ADDR, or set distributed.backend=auto"
            raise InputError(f"distributed.backend: mpi: {reason}; {fix}")
        return Transport(name="gloo", reason=reason), ()
    mpi = sys.modules[MODULE]
    # A rank that has failed enters this exchange with its failure, so that all ranks end alike.
    level = min(exchange(mpi.Query_thread(), int))
    notes: tuple[str, ...] = ()
    if backend == "mpi" or (backend == "auto" and rendezvous.hosts != 1):
        library = mpi.Get_library_version().split("\n")[0].strip(" \0")
        if level >= mpi.THREAD_SERIALIZED:
            name, version = mpi.get_vendor()
            own = f"{name} {'.'.join(map(str, version))}"
            reason = f"started by {ranks.launcher}'s mpirun, library {own}"
            return Transport(name="mpi", reason=reason), ()
        note = f"MPI allows no calls by a second thread (its level is below SERIALIZED: {library})"
        notes = (f"{note}; gradients go by gloo",)
    mpi.Finalize()
    if rendezvous.hosts == 1:
        return ONE_HOST, notes
    reason = "MPI's thread level is too low" if notes else f"distributed.backend={backend}"
    return Transport(name="gloo", reason=reason), notes


def finalize_mpi() -> None:
    """Finalize MPI, if it is initialized, at the end of a job; all ranks call it."""
    mpi = sys.modules.get(MODULE)
    if mpi is not None and not mpi.Is_finalized():
        mpi.Finalize()


def master_rendezvous(environment: Mapping[str, str]) -> Rendezvous:
    """Return the rendezvous that `MASTER_ADDR` and `MASTER_PORT` name."""
    port, address = master_port(environment), environment.get("MASTER_ADDR", "")
    try:
        socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"MASTER_ADDR: {address!r} is not a known address or host name ({error}); give the "
            "address of rank 0's host"
        ) from error
    return Rendezvous(address=address, port=port)


def master_port(environment: Mapping[str, str]) -> int:
    """Return `MASTER_PORT` as a number."""
    text = environment.get("MASTER_PORT", "")
    if not is_number(text) or not 0 < int(text) <= LAST_PORT:
        raise InputError(f"MASTER_PORT: {text!r} is not a port; set it together with MASTER_ADDR")
    return int(text)


def slurm_rendezvous(environment: Mapping[str, str]) -> Rendezvous:
    """Return the step's first host, with a port made of the job's and the step's number."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    job = environment.get("SLURM_JOB_ID", "")
    if not nodes or not JOB_NUMBER.fullmatch(job):
        raise InputError(
            "SLURM_STEP_NODELIST, SLURM_JOB_ID: not set; start with srun, or set MASTER_ADDR and "
            "MASTER_PORT"
        )
    step = environment.get("SLURM_STEP_ID", "0")
    # Up to 16 steps of a job that run at the same time have different ports. All are below 32,768,
    # from where Linux by default takes the ports of outgoing connections.
    number = int(job) * 16 + (int(step) if JOB_NUMBER.fullmatch(step) else 0)
    return Rendezvous(address=expand_hosts(nodes)[0], port=FIRST_PORT + number % PORTS)


class StartFailedError(Exception):
    """A rank cannot start, as all ranks have learned in an exchange; `text` is for stderr."""

    def __init__(self, rank: int, *, code: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank
        self.code = code
        self.text = text


def start_mpi(ranks: Ranks, environment: Mapping[str, str]) -> None:
    """Load MPI's library and initialize it; all ranks call it."""
    if "MPI4PY_LIBMPI" not in environment and "MPI4PY_MPIABI" not in environment:
        library = find_library(ranks.launcher, environment)
        if library is not None:
            os.environ["MPI4PY_LIBMPI"] = str(library)
        elif ranks.launcher == "open-mpi":
            os.environ["MPI4PY_MPIABI"] = "openmpi"  # and the dynamic linker finds it, or not
    import mpi4py  # only here, so that logs can be analyzed without it

    # mpi4py would finalize MPI when the interpreter ends, which is collective: a rank that fails
    # alone would wait for the others.
    mpi4py.rc.finalize = False
    # Calls by several threads, one at a time: first this one's, then those of the thread that
    # exchanges gradients. A higher level would cost a lock in each call.
    mpi4py.rc.thread_level = "serialized"
    if ranks.local_size == ranks.size and not any(name.startswith("UCX_") for name in environment):
        for name, value in MPI_ON_ONE_HOST.items():
            os.environ.setdefault(name, value)
    launcher = f"mpirun of {ranks.launcher}"
    advice = "set MPI4PY_LIBMPI=/path/to/libmpi.so, or MASTER_ADDR and MASTER_PORT"
    try:
        mpi = importlib.import_module(MODULE)  # initializes MPI
    except (ImportError, RuntimeError) as error:
        reason = f"mpi4py cannot load its library: {str(error).splitlines()[0]}"
        raise InputError(f"{launcher}: {reason}; {advice}") from error
    if mpi.COMM_WORLD.size != ranks.size:
        version = mpi.Get_library_version().splitlines()[0]
        raise InputError(
            f"{launcher} started {ranks.size} ranks, but mpi4py loaded another MPI library "
            f"({version}); {advice}"
        )


MPI_ON_ONE_HOST = {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo", "FI_SOCKETS_IFACE": "lo"}
"""The variables by which UCX and libfabric listen at the loopback only, below MPI's library."""


def find_library(launcher: str, environment: Mapping[str, str]) -> Path | None:
    """Return the MPI library beside the mpirun that has started this process; it knows the fabric.

    Where none is to be seen, as in a container, it is MPICH's of this environment, which works with
    the launchers of MPICH and Intel MPI; None if that is missing too.
    """
    if launcher == "open-mpi":
        library = Path(environment.get("OMPI_LIBDIR_LOC", ""), "libmpi.so.40")
        return library if library.is_file() else None
    folders = [program.parent.parent for program in parent_programs() if program.name == HELPER]
    for folder in (*folders, Path(sys.prefix)):
        for place in ("lib", "lib/release", "lib64"):  # the second: Intel MPI before 2021.11
            library = folder / place / "libmpi.so.12"
            if library.is_file():
                return library
    return None


def parent_programs() -> Iterator[Path]:
    """Yield the programs of this process's parents, the nearest first, as far as they are seen."""
    with suppress(OSError):
        for process in ancestors(os.getpid()):
            yield Path(f"/proc/{process}/exe").readlink()


def is_running(ranks: Ranks) -> bool:
    """Return whether MPI is initialized, with the launcher's ranks, and not finalized."""
    mpi = sys.modules.get(MODULE)
    return mpi is not None and not mpi.Is_finalized() and mpi.COMM_WORLD.size == ranks.size


def exchange(value: Value, kind: Any, *, failure: tuple[int, str] | None = None) -> list[Value]:
    """Return all ranks' values of a type, in order of rank; all ranks call it.

    A rank that cannot continue passes its `failure`: exit code and text for stderr. For the `kind`
    see `launch.messages.decode`, which raises the same.

    Raises:
        StartFailedError: On all ranks, if one has given a failure; the lowest rank's counts.
    """
    texts = []
    for rank, content in enumerate(exchange_bytes(encode((encode(value).decode(), failure)))):
        text, their_failure = decode(
            content, tuple[str, tuple[int, str] | None], sender=f"rank {rank}"
        )
        if their_failure is not None:
            raise StartFailedError(rank, code=their_failure[0], text=their_failure[1])
        texts.append(text.encode())
    return [decode(text, kind, sender=f"rank {rank}") for rank, text in enumerate(texts)]


def exchange_bytes(content: bytes) -> list[bytes]:
    """Return the contents of all ranks, in order of rank."""
    # MPI's own calls on memory: mpi4py's functions for objects would pickle them.
    world = sys.modules[MODULE].COMM_WORLD
    lengths = array("i", bytes(array("i").itemsize * world.size))
    world.Allgather(array("i", [len(content)]), lengths)
    for rank, length in enumerate(lengths):
        checked_length(length, sender=f"rank {rank}")
    received = bytearray(sum(lengths))
    mpi = sys.modules[MODULE]
    world.Allgatherv([content, mpi.BYTE], [received, lengths, mpi.BYTE])
    ends = list(accumulate(lengths))
    return [bytes(received[end - size : end]) for size, end in zip(lengths, ends, strict=True)]


SIOCGIFADDR = 0x8915  # Linux's request for an interface's IPv4 address


def interface_addresses() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, such as {"lo": "127.0.0.1"}."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                # `struct ifreq`: 16 bytes for the name, then a `sockaddr_in` with the address in
                # its bytes 4 to 7.
                reply = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                addresses[name] = socket.inet_ntoa(reply[20:24])
    return addresses


def host_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses at which other hosts may reach this one.

    Raises:
        InputError: `GLOO_SOCKET_IFNAME` names no interface that has an address.
    """
    addresses = interface_addresses()
    names = environment.get("GLOO_SOCKET_IFNAME")
    if not names:
        return tuple(item for item in addresses.values() if not item.startswith("127."))
    # gloo takes several interfaces, separated by commas, in turn.
    for name in names.split(","):
        if name not in addresses:
            raise InputError(
                f"GLOO_SOCKET_IFNAME={name}: no such interface with an IPv4 address on "
                f"{socket.gethostname()}; choose among {', '.join(addresses)}"
            )
    return tuple(addresses[name] for name in names.split(","))


def reachable(addresses: tuple[str, ...], port: int) -> str:
    """Return the first address at which something listens.

    Raises:
        ConnectionError: There is none; names all.
    """
    problems = []
    for address in addresses:
        try:
            socket.create_connection((address, port), timeout=ANSWER_S).close()
        except OSError as error:
            problems.append(f"{address} ({error})")
        else:
            return address
    raise ConnectionError(f"cannot be reached at port {port} of {', '.join(problems)}")


def listen(host: str, port: int) -> socket.socket | None:
    """Listen at an address of this host, by which others reach it; port 0: any that is free.

    None if `host` is no such address: a service that forwards, or a name that means 127.0.1.1 here
    and another address elsewhere.

    Raises:
        OSError: The port is in use.
    """
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:  # ranks of other hosts may know the name
        return None
    for family, _, _, _, place in places:
        numeric = str(place[0])
        if ipaddress.ip_address(numeric).is_loopback and host not in (numeric, "localhost"):
            continue
        try:
            listener = socket.create_server(place, family=family, backlog=1024)
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
        else:
            listener.set_inheritable(False)
            return listener
    return None


NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of an address that this host does not have."""


def interface_towards(address: str, port: int) -> str | None:
    """Return the interface over which this host reaches an address; None if it is not known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # For UDP this sends nothing: the kernel only looks up the route, and with it the own
            # address.
            probe.connect((address, port))
        except OSError:
            return None
        return interface_with(probe.getsockname()[0])


def interface_with(address: str) -> str | None:
    """Return the interface that has the address."""
    return next((name for name, its in interface_addresses().items() if its == address), None)


def network_of_this_process() -> str:
    """Return a text that is equal for processes of one host and network namespace."""
    # Namespaces of different hosts may have the same number, but each boot has an id of its own.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


@contextmanager
def rank0_only_errors(ranks: Ranks) -> Iterator[None]:
    """Silence ranks other than 0 in the context, and end all ranks if one fails.

    mpirun's ranks exchange failures: rank 0 prints that of the lowest rank, and all exit with its
    status. Other launchers' ranks hold their error back until rank 0 has had time to end alike.
    """
    held_back = io.StringIO()
    try:
        with silenced(held_back) if ranks.rank else nullcontext():
            yield
    except BaseException as error:
        is_help = isinstance(error, SystemExit) and not error.code
        if ranks.size > 1 and not is_help:
            code = error.code if isinstance(error, StartFailedError) else exit_code_for(error)
            problem = format_error(error)
            if isinstance(error, SystemExit):
                code = error.code if isinstance(error.code, int) else 1
                problem = held_back.getvalue().strip()
            if problem is None:
                problem = "".join(traceback.format_exception(error)).strip()
            text = f"rank {ranks.rank} on {socket.gethostname()}: {problem}"

            def end() -> None:  # the others never came to the exchange
                print(text, file=sys.__stderr__, flush=True)
                os._exit(code)

            with timers((AGREEMENT_S, end)):
                agreed = agree_on_failure(ranks, error, failure=(code, text))
            if agreed is None:
                time.sleep(ANSWER_S if ranks.rank else 0)
                sys.stderr.write(held_back.getvalue())
            elif not (agreed.rank == ranks.rank == 0):
                if ranks.is_first:
                    write_line(agreed.text)
                # By way of C's exit, in which MPICH reports to its launcher that all is well.
                raise SystemExit(agreed.code) from error
        raise


@contextmanager
def silenced(errors: io.StringIO) -> Iterator[None]:
    """Drop stdout in the context, and collect stderr in `errors`."""
    with (
        Path(os.devnull).open("w", encoding="utf-8", errors="replace") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(errors),
    ):
        yield


def agree_on_failure(
    ranks: Ranks, error: BaseException, *, failure: tuple[int, str]
) -> StartFailedError | None:
    """Return the failure with which all ranks of mpirun end, and finalize MPI; None: no MPI."""
    if ranks.launcher not in MPI_LAUNCHERS:
        return None
    # If a rank fails, mpirun ends the others only if the failed rank has initialized MPI. So MPI is
    # initialized even for an error that came before.
    if MODULE not in sys.modules:
        with suppress(InputError):
            start_mpi(ranks, os.environ)
    if not is_running(ranks) or isinstance(error, KeyboardInterrupt):
        return None
    agreed = error if isinstance(error, StartFailedError) else None
    if agreed is None:
        try:
            exchange(None, None, failure=failure)  # always raises
        except StartFailedError as first:
            agreed = first
    sys.modules[MODULE].Finalize()
    return agreed
