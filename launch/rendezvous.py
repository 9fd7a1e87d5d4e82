"""How the ranks of a job find each other before torch is loaded, and how early errors end them.

Ranks meet through mpirun's own library, or where the environment says. This comes before torch is
loaded, because the CPUs of all ranks of a host decide where each is pinned. MPI is used for
rendezvous only and finalized before torch is imported.

An mpirun of MPICH kills all ranks, and its status is 9, where one of them ends without having
finalized MPI. Finalizing is collective. So a rank that cannot start takes part in the next exchange
with its failure; then all finalize MPI and exit with the same status. An error before the ranks are
connected is so printed once, by rank 0. What may wait for ever inside a library, where no exception
can reach it, has a deadline that ends the process.

Network interfaces are looked up here too: which addresses this host has, and which of them leads to
another host.
"""

import fcntl
import importlib
import io
import os
import re
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import mpi4py

from common.errors import InputError, described, exit_code_of
from launch.hosts import expand_hosts
from launch.ranks import Ranks
from launch.topology import is_number

JOB_NUMBER = re.compile("[0-9]{1,18}")
LAST_PORT = 65_535
FIRST_PORT, PORTS = 20_000, 10_000
"""Slurm's jobs meet at a port that follows from their number."""


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
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


def meet(ranks: Ranks, environment: Mapping[str, str]) -> Rendezvous:
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


def told_meeting(environment: Mapping[str, str]) -> Rendezvous:
    """Return the rendezvous that `MASTER_ADDR` and `MASTER_PORT` name.

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
    return Rendezvous(addresses=(address,), port=port)


def master_port(environment: Mapping[str, str]) -> int:
    """Return `MASTER_PORT` as a number."""
    text = environment.get("MASTER_PORT", "")
    if not is_number(text) or not 0 < int(text) <= LAST_PORT:
        raise InputError(f"MASTER_PORT: {text!r} is no port, beside MASTER_ADDR; give one")
    return int(text)


def meet_in_slurm(environment: Mapping[str, str]) -> Rendezvous:
    """Return the step's first host, with a port made of the job's and the step's number."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    job = environment.get("SLURM_JOB_ID", "")
    if not nodes or not JOB_NUMBER.fullmatch(job):
        raise InputError(
            "SLURM_STEP_NODELIST, SLURM_JOB_ID: not set, as srun does; give MASTER_ADDR and "
            "MASTER_PORT"
        )
    step = environment.get("SLURM_STEP_ID", "0")
    number = int(job) * 16 + (int(step) if JOB_NUMBER.fullmatch(step) else 0)
    return Rendezvous(addresses=(expand_hosts(nodes)[0],), port=FIRST_PORT + number % PORTS)


def meet_through_mpi(ranks: Ranks, environment: Mapping[str, str]) -> Rendezvous:
    """Open a port on rank 0; all ranks learn its addresses, and the CPUs of their neighbours.

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
    return Rendezvous(
        addresses=addresses,
        port=port,
        listener=listener,
        affinities=tuple(cpus for _, cpus in neighbours),
    )


def listen() -> socket.socket:
    """Return a port of all addresses that nobody can take before torch does."""
    listener = socket.create_server(("", 0), backlog=1024)
    listener.set_inheritable(False)
    return listener


MPI_LAUNCHERS = ("mpich", "intel-mpi", "open-mpi")
MODULE = "mpi4py.MPI"


class StartFailedError(Exception):
    """A rank cannot start, as all ranks have learned in an exchange; `text` is for stderr."""

    def __init__(self, rank: int, *, code: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank
        self.code = code
        self.text = text


def start_mpi(ranks: Ranks, environment: Mapping[str, str]) -> None:
    """Load MPI's library and initialize it; all ranks call it.

    Raises:
        InputError: The library that mpi4py finds is not the launcher's.
    """
    choose_library(ranks, environment)
    mpi4py.rc.finalize = False  # at the end of a process that fails it would wait for the others
    try:
        mpi = importlib.import_module(MODULE)  # initializes MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"mpirun of {ranks.launcher}: mpi4py cannot load its library: {reason}; set "
            "MPI4PY_LIBMPI=/path/to/libmpi.so, or MASTER_ADDR and MASTER_PORT"
        ) from error
    if mpi.COMM_WORLD.size != ranks.size:
        library = mpi.Get_library_version().splitlines()[0]
        raise InputError(
            f"mpirun of {ranks.launcher} started {ranks.size} ranks, but its library is not "
            f"{library}, which mpi4py found; set MPI4PY_LIBMPI=/path/to/libmpi.so, or MASTER_ADDR "
            "and MASTER_PORT"
        )


def exchange(value: Any, *, failure: tuple[int, str] | None = None) -> list[Any]:
    """Return the values of all ranks, in order of rank; all ranks call it.

    Args:
        value: This rank's; pickled.
        failure: Exit code and text for stderr, if this rank cannot go on.

    Raises:
        StartFailedError: On all ranks, if one has given a failure; the lowest rank's counts.
    """
    pairs = sys.modules[MODULE].COMM_WORLD.allgather((value, failure))
    for rank, (_, found) in enumerate(pairs):
        if found is not None:
            raise StartFailedError(rank, code=found[0], text=found[1])
    return [value for value, _ in pairs]


def is_running(ranks: Ranks) -> bool:
    """Return whether MPI is initialized, with the launcher's ranks, and not finalized."""
    mpi = sys.modules.get(MODULE)
    return mpi is not None and not mpi.Is_finalized() and mpi.COMM_WORLD.size == ranks.size


def finalize() -> None:
    """Finalize MPI; all ranks call it."""
    sys.modules[MODULE].Finalize()


def choose_library(ranks: Ranks, environment: Mapping[str, str]) -> None:
    """Have mpi4py load the library that talks to the launcher, unless the user has chosen.

    MPICH's, which comes with our requirements, talks to Intel MPI's launcher too.
    """
    if "MPI4PY_LIBMPI" in environment or "MPI4PY_MPIABI" in environment:
        return
    if ranks.launcher == "open-mpi":
        library = Path(environment.get("OMPI_LIBDIR_LOC", ""), "libmpi.so.40")
    else:
        library = Path(sys.prefix, "lib", "libmpi.so.12")
    if library.is_file():
        os.environ["MPI4PY_LIBMPI"] = str(library)
    elif ranks.launcher == "open-mpi":
        os.environ["MPI4PY_MPIABI"] = "openmpi"  # and the dynamic linker finds it, or not


SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address."""
SECONDS_TO_CONNECT = 3.0


def interface_addresses() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, such as {"lo": "127.0.0.1"}."""
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
    """Return the addresses at which other hosts may reach this one.

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
    """Return the first address at which something listens.

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
    """Return the interface over which this host reaches an address; None if it cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))  # sends nothing: asks the routing table
        except OSError:
            return None
        own = probe.getsockname()[0]
    return interface_of(own)


def interface_of(address: str) -> str | None:
    """Return the interface that has the address."""
    names = [name for name, own in interface_addresses().items() if own == address]
    return names[0] if names else None


def network_of_this_process() -> str:
    """Return a text that is equal for processes of one host and network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


SECONDS_TO_BE_ENDED = 3.0
"""After rank 0 has ended with the same error, a launcher without MPI ends the others."""
SECONDS_TO_AGREE = 60.0
"""In which the other ranks of mpirun come to the exchange in which they learn of an error."""


@contextmanager
def rank0_only_errors(ranks: Ranks) -> Iterator[None]:
    """Keep ranks other than 0 silent meanwhile, and end all of them if one fails.

    mpirun's ranks tell each other: rank 0 prints its own error, or that of the lowest rank that has
    one, and all exit with its status. Other launchers' ranks hold their own error back until rank 0
    has had time to end in the same way.
    """
    held_back = io.StringIO()
    try:
        with silenced(held_back) if ranks.rank else nullcontext():
            yield
    except BaseException as error:
        if ranks.size > 1 and not ended_well(error):
            failure = (code_of(error), text_of(error, printed=held_back.getvalue(), ranks=ranks))
            with hard_limit(SECONDS_TO_AGREE, *failure):
                failed = failure_of_all(ranks, error, failure=failure)
            if failed is not None and not (failed.rank == ranks.rank == 0):
                end_with(failed, prints=ranks.is_first)
            if failed is None:
                time.sleep(SECONDS_TO_BE_ENDED if ranks.rank else 0)
                sys.stderr.write(held_back.getvalue())
        raise


@contextmanager
def silenced(errors: io.StringIO) -> Iterator[None]:
    """Drop what is printed meanwhile, but keep what goes to stderr."""
    with (
        Path(os.devnull).open("w", encoding="utf-8", errors="replace") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(errors),
    ):
        yield


def ended_well(error: BaseException) -> bool:
    """Return whether it is the end of `--help`."""
    return isinstance(error, SystemExit) and not error.code


def failure_of_all(
    ranks: Ranks, error: BaseException, *, failure: tuple[int, str]
) -> StartFailedError | None:
    """Agree with the other ranks of mpirun on how they end, and finalize MPI.

    Returns:
        The failure with which all end; None where there is no MPI to agree through.
    """
    if ranks.launcher not in MPI_LAUNCHERS:
        return None
    if "mpi4py.MPI" not in sys.modules:
        with suppress(InputError):
            start_mpi(ranks, os.environ)
    if not is_running(ranks) or isinstance(error, KeyboardInterrupt):
        return None
    try:
        if isinstance(error, StartFailedError):
            raise error
        exchange(None, failure=failure)
    except StartFailedError as agreed:
        finalize()
        return agreed
    raise AssertionError("an exchange with a failure always raises")


def end_with(failed: StartFailedError, *, prints: bool) -> NoReturn:
    """Exit with the status that all ranks have agreed on.

    By way of the interpreter's and C's exit, in which MPICH tells its launcher that all is well.
    """
    if prints:
        print(failed.text, file=sys.stderr, flush=True)
    raise SystemExit(failed.code)


@contextmanager
def hard_limit(seconds: float, code: int, text: str) -> Iterator[None]:
    """End the process with this text and exit code if the context lasts longer."""

    def end() -> None:
        print(text, file=sys.__stderr__, flush=True)
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def code_of(error: BaseException) -> int:
    """Return the exit status with which a command ends that such an error has reached."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return error.code if isinstance(error, StartFailedError) else exit_code_of(error)


def text_of(error: BaseException, *, printed: str, ranks: Ranks) -> str:
    """Return what rank 0 prints of this rank's error; `printed`: what the rank has held back."""
    text = printed.strip() if isinstance(error, SystemExit) else described(error)
    if text is None:
        text = "".join(traceback.format_exception(error)).strip()
    return f"rank {ranks.rank} on {socket.gethostname()}: {text}"


TOO_LATE = 1
NOTICE_S = 30.0
NOTICE_SHARE = 0.25
"""A note is printed after 30 s, or after this share of a limit below two minutes."""


@dataclass
class Wait:
    """What a process waits for at the moment, for messages; whoever waits keeps it up to date."""

    what: str
    """Such as "rank 0 at 10.0.0.1, port 29500"."""
    advice: str
    """What may be wrong, and where to look."""
    noted: bool = True
    """Whether a note is printed while it lasts; the end of the limit always is."""


@contextmanager
def deadline(seconds: float, who: str, wait: Wait) -> Iterator[None]:
    """End the process with one line on stderr if the context lasts longer than so many seconds.

    A note is printed after `NOTICE_S`.

    Args:
        seconds: The limit.
        who: A sentence's beginning, such as "rank 3 on node-b".
        wait: What the process waits for.
    """

    def note() -> None:
        if wait.noted:
            print(
                f"note: {who} has waited {notice_s:g} s for {wait.what}, and waits for up to "
                f"{seconds:g} s: {wait.advice}",
                file=sys.stderr,
                flush=True,
            )

    def end() -> None:
        print(
            f"error: {who} waited {seconds:g} s for {wait.what}: {wait.advice}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(TOO_LATE)

    notice_s = min(NOTICE_S, NOTICE_SHARE * seconds)
    timers = [threading.Timer(notice_s, note), threading.Timer(seconds, end)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
