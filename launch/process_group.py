"""The ranks of a job as one group: how they connect, exchange values, and end together."""

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from common.console import discard_output
from common.errors import INTERRUPTED, STOPPED_TOO_EARLY, InputError, exit_code_for, format_error
from common.machine import ProcessIdentity, own_process
from launch.compute_threads import calling_thread_on
from launch.messages import checked_length, decode, encode
from launch.pinning import RankContext, check_cores
from launch.ranks import Ranks
from launch.rendezvous import (
    CONNECTIONS_ADVICE,
    FIREWALL,
    LOCALHOST,
    ONE_HOST,
    Rendezvous,
    Transport,
    finalize_mpi,
    interface_towards,
    interface_with,
    listen,
    network_of_this_process,
)
from launch.secret import VARIABLE, JobSecret, SealedStore, shared_secret
from launch.topology import format_ranks
from launch.waiting import ANSWER_S, BEAT_S, LOOK_S, Wait, deadline, write_line
from launch.watchdog import Watch, launcher_process, watch_as_first, watch_as_other

SILENCE_SHARE = 0.8
"""A rank fails after this share of `timeout_s` without a heartbeat: before gloo's exchange times
out, whose error does not name the rank."""
NAMES = "check that MASTER_ADDR, MASTER_PORT or host names are right"

EVERYWHERE = (
    "rank 0 listens on all interfaces of {host}, since it does not know the one address by which "
    "the others reach it; set MASTER_ADDR to that address, or GLOO_SOCKET_IFNAME to its interface"
)
GIVEN_AWAY = (
    "the job's secret went through its store, where whoever reached its port could read it, since "
    f"other hosts do not see {{folder}}; set {VARIABLE}, or run.root on a drive of all hosts"
)
SENT_TYPES = {
    str(kind): kind for kind in (torch.float32, torch.float64, torch.bfloat16, torch.int64)
}

Value = TypeVar("Value")


@dataclass(kw_only=True)
class ProcessGroup:
    """The ranks that train together; one process alone is a group of one, without torch's."""

    rank: int = 0
    size: int = 1
    hosts: tuple[str, ...] = field(default_factory=lambda: (socket.gethostname(),))
    backend: str = "none"
    """The one that exchanges gradients: `gloo`, `ccl`, or `none` in a group of one."""
    host_numbers: tuple[int, ...] = (0,)
    """The host of each rank, numbered in the order of their first ranks."""
    transport: Transport = ONE_HOST
    comm_cpus: tuple[int, ...] = ()
    """This rank's communication cores; empty: its threads for that run among those that compute."""
    notes: tuple[str, ...] = ()
    watch: Watch | None = None
    control: dist.ProcessGroup | None = None
    """torch's group for everything else, always gloo."""
    exchange: dist.ProcessGroup | None = None
    """torch's group for gradients; None: that of all ranks of the job."""
    sealed: SealedStore | None = None
    """The job's store, for values that only ranks may leave."""
    on_leave: list[Callable[[], None]] = field(default_factory=list)
    """Called before torch's groups end, by what uses them in a thread of its own."""
    job_ranks: tuple[int, ...] = ()
    """The number in the job of each rank; empty if these are all ranks of the job."""

    def in_job(self, rank: int) -> int:
        """Return the rank of a member in torch's group of all ranks of the job."""
        return self.job_ranks[rank] if self.job_ranks else rank

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are in one host's network."""
        return len(set(self.host_numbers)) == 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: in the group of all ranks it alone writes and prints."""
        return self.rank == 0

    def place_of(self, rank: int) -> str:
        """Return how messages name a rank: by its number and its host."""
        return f"rank {rank} on {self.hosts[rank]}"

    def all_gather(self, value: Value, kind: Any) -> list[Value]:
        """Return all ranks' values of a type, in order of rank; all ranks call it.

        For the `kind` see `launch.messages.decode`, which raises the same.
        """
        if self.size == 1:
            return [value]
        content = bytearray(encode(value))
        length = torch.tensor([len(content)])
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        dist.all_gather(lengths, length, group=self.control)
        counts = [
            checked_length(int(count), sender=f"rank {rank}") for rank, count in enumerate(lengths)
        ]
        content.extend(bytes(max(counts) - len(content)))  # all are as long as the longest
        sent = torch.frombuffer(content, dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(received, sent, group=self.control)
        return [
            decode(message[:count].numpy().tobytes(), kind, sender=f"rank {rank}")
            for rank, (message, count) in enumerate(zip(received, counts, strict=True))
        ]

    def gather(self, value: Value, kind: Any) -> list[Value] | None:
        """Return all values on rank 0, None on others; otherwise as `all_gather`."""
        values = self.all_gather(value, kind)
        return values if self.is_first else None

    def gather_rows(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Return the rows of all ranks' columns on rank 0, in order of rank; none on others.

        All ranks call it with columns of the same types and shapes but for the rows.
        """
        if self.size == 1:
            return list(columns)
        counts = self.all_gather(len(columns[0]), int)
        # torch's `gather` needs the same shape on all ranks. Empty parts are neither sent nor
        # received.
        if not self.is_first:
            for column in columns if counts[self.rank] else ():
                dist.send(column.contiguous(), dst=self.in_job(0), group=self.control)
            return [column[:0] for column in columns]
        gathered = []
        for column in columns:
            whole = torch.empty((sum(counts), *column.shape[1:]), dtype=column.dtype)
            first, *others = whole.split(counts)
            first.copy_(column)
            for rank, rows in enumerate(others, start=1):
                if len(rows):
                    dist.recv(rows, src=self.in_job(rank), group=self.control)
            gathered.append(whole)
        return gathered

    def from_first(self, make: Callable[[], Value], kind: Any) -> Value:
        """Return rank 0's value of a type on all ranks; all ranks call it.

        For the `kind` see `launch.messages.decode`, which raises the same.
        """
        if self.size == 1:
            return make()
        made = make() if self.is_first else None
        content = bytearray(encode(made)) if self.is_first else bytearray()
        length = torch.tensor([len(content)])
        self.broadcast([length])
        if not self.is_first:
            content = bytearray(checked_length(int(length), sender="rank 0"))
        self.broadcast([torch.frombuffer(content, dtype=torch.uint8)])
        return cast("Value", decode(bytes(content), kind, sender="rank 0"))

    def tensors_from_first(
        self,
        make: Callable[[], Mapping[str, Tensor]],
        *,
        shape_of: Callable[[str], torch.Size | None],
    ) -> dict[str, Tensor]:
        """Return rank 0's tensors by their names on all ranks; all ranks call it.

        Each is a number, or has the shape that `shape_of` returns for its name.

        Raises:
            InputError: A name is not known (None), or a shape or type differs.
        """
        made = make() if self.is_first else {}
        described = self.from_first(
            lambda: [(name, str(item.dtype), tuple(item.shape)) for name, item in made.items()],
            list[tuple[str, str, tuple[int, ...]]],
        )
        received = {}
        for name, kind, shape in described:
            if kind not in SENT_TYPES or (shape and shape != shape_of(name)):
                raise InputError(
                    f"{name}: rank 0 has {kind} of the shape {list(shape)}, which does not fit "
                    "this model"
                )
            tensor = torch.empty(shape, dtype=SENT_TYPES[kind])
            # Ranks may lay out their tensors differently in memory.
            received[name] = made[name].contiguous() if self.is_first else tensor
        self.broadcast(received.values())
        return received

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Put rank 0's values into the tensors of all; all ranks call it."""
        if self.size == 1:
            return
        for tensor in tensors:  # torch counts `src` in the whole job, also within a smaller group
            dist.broadcast(tensor, src=self.in_job(0), group=self.control)

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        if self.size > 1:
            dist.barrier(group=self.control)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Put the mean over the ranks into floating-point tensors; all ranks call it."""
        if self.size == 1:
            return
        with torch.no_grad():
            for tensor in tensors:
                dist.all_reduce(tensor, group=self.control)
                tensor.div_(self.size)

    def leave(self) -> None:
        """End torch's groups, with their threads."""
        # A thread of gloo may hold a tensor of the last exchange longer than its caller. If the
        # interpreter ends before the thread releases it, the process aborts (SIGABRT). The threads
        # end when no reference to their group is left, so the references go first.
        for close in self.on_leave:
            close()
        self.on_leave.clear()
        self.control = self.exchange = self.sealed = None
        dist.destroy_process_group()

    def interrupt(self) -> NoReturn:
        """End the job now, from any thread of any rank; does not return."""
        text = f"{format_error(KeyboardInterrupt())}"
        if self.watch is None:
            write_line(text)
            os._exit(INTERRUPTED)
        self.watch.fail(INTERRUPTED, text)

    def fail(self, error: BaseException) -> NoReturn:
        """End the job with an error of this rank; does not return."""
        assert self.watch is not None
        text = format_error(error)
        if text is None:
            # A bug, or an exchange that broke because another rank has failed. In the second case
            # the cause is on its way, and this sleep is the end of the process: one traceback.
            time.sleep(ANSWER_S)
            text = "".join(traceback.format_exception(error))
        if not self.is_first:
            # Rank 0 prints an error that all have, without naming a rank. Not after a signal:
            # launchers kill ranks half a second later, and the next Ctrl-C would end this sleep.
            if exit_code_for(error) not in (INTERRUPTED, STOPPED_TOO_EARLY):
                time.sleep(BEAT_S)
            text = f"{self.place_of(self.rank)}: {text}"
        self.watch.fail(exit_code_for(error), text)


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """Host, network and process of a rank."""

    host: str
    network: str
    process: ProcessIdentity | None


@contextmanager
def joined(
    place: RankContext, *, timeout_s: float, folder: Path | None = None
) -> Iterator[ProcessGroup]:
    """Connect the ranks while the context lasts; an error, or silence for `timeout_s`, ends all.

    For the `folder` of the run see `launch.secret.shared_secret`.
    """
    # Before other threads start, since a thread inherits the CPUs of the one that starts it.
    pinned = place.pinned
    corrected = check_cores(pinned.share, openmp=pinned.openmp, bound=pinned.enabled)
    notes = (*pinned.notes, *corrected, *place.notes)
    if place.rendezvous is None:
        yield ProcessGroup(notes=notes)
        return
    ranks = place.ranks
    # MPICH's mpirun with -disable-auto-cleanup sends it to the other ranks of a host when one has
    # ended. Where no `StopRequest` handles it, it would end them with a status of its own.
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    wait = Wait("the other ranks", advice=CONNECTIONS_ADVICE)
    with deadline(timeout_s, f"rank {ranks.rank} on {socket.gethostname()}", wait):
        group = join(
            place, place.rendezvous, timeout_s=timeout_s, notes=notes, wait=wait, folder=folder
        )
    assert group.watch is not None
    launcher = launcher_process(ranks, os.environ)
    group.watch.start(silence_s=SILENCE_SHARE * timeout_s, launcher=launcher, beat=place.beat)
    try:
        yield group
        # No rank leaves while another still works. After the loss of a compute group the barrier
        # would never end, since gloo's group still counts the lost ranks.
        if not group.watch.lost:
            group.barrier()
    except BaseException as error:
        # Also after SystemExit and KeyboardInterrupt: the others would wait for this rank in their
        # next exchange.
        group.fail(error)
    group.watch.close()
    group.leave()
    # The last: an mpirun ends all ranks if one of them ends before.
    wait = Wait("the other ranks to end MPI", advice=CONNECTIONS_ADVICE)
    with deadline(timeout_s, f"rank {ranks.rank} on {socket.gethostname()}", wait):
        finalize_mpi()
    # Python resets its handlers before the process ends, and the others may have ended by now.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def join(
    place: RankContext,
    rendezvous: Rendezvous,
    *,
    timeout_s: float,
    notes: tuple[str, ...],
    wait: Wait,
    folder: Path | None = None,
) -> ProcessGroup:
    """Connect to the other ranks, and make torch's groups.

    Raises:
        InputError: Rank 0 cannot be reached.
    """
    ranks, backend, timeout = place.ranks, place.backend, timedelta(seconds=timeout_s)
    store, address = connect(ranks, rendezvous, timeout=timeout, wait=wait)
    known = rendezvous.secret
    try:
        with shared_secret(store, ranks, known=known, folder=folder, wait=wait) as secret:
            sealed = SealedStore(store=store, secret=secret.value)
            facts = exchange_facts(sealed, ranks, wait=wait, secret=secret)
            wait.what, wait.advice = "connections with all other ranks", CONNECTIONS_ADVICE
            networks = [fact.network for fact in facts]
            choose_interface(sealed, ranks, networks, address=address, port=rendezvous.port)
            watch, watch_notes = start_watch(sealed, ranks, facts, address=address)
    except RuntimeError as error:
        raise connection_broken(ranks, "its store") from error
    notes = (*notes, *watch_notes)
    if secret.was_given:
        notes = (*notes, GIVEN_AWAY.format(folder=folder))
    hosts = tuple(fact.host for fact in facts)
    if backend == "ccl":
        import_module("oneccl_bindings_for_pytorch")  # registers the backend
    # gloo starts its threads here, and they inherit the CPUs of this one. It also prints a line for
    # each connection to stdout, from C++.
    with calling_thread_on(place.pinned.share.comm_cpus), discard_output():
        dist.init_process_group(
            backend, store=store, rank=ranks.rank, world_size=ranks.size, timeout=timeout
        )
        is_gloo = backend == "gloo"
        control = dist.group.WORLD if is_gloo else new_group(backend="gloo", timeout=timeout)
    return ProcessGroup(
        rank=ranks.rank,
        size=ranks.size,
        hosts=hosts,
        backend=backend,
        host_numbers=tuple(map(list(dict.fromkeys(networks)).index, networks)),
        transport=place.transport,
        comm_cpus=place.pinned.share.comm_cpus,
        notes=notes,
        watch=watch,
        control=control,
        sealed=sealed,
    )


def start_watch(
    sealed: SealedStore, ranks: Ranks, facts: Sequence[RankFacts], *, address: str
) -> tuple[Watch, tuple[str, ...]]:
    """Return this rank's watch, connected to the others', with notes.

    `address` is rank 0's, as this rank reaches it.
    """
    processes = [fact.process for fact in facts]
    hosts, key = [fact.host for fact in facts], sealed.secret
    if not ranks.is_first:
        place = (address, sealed.get("watch port", int))
        return watch_as_other(
            ranks.rank, hosts=hosts, key=key, address=place, processes=processes
        ), ()
    listener = listen(address, 0) or socket.create_server(("", 0), backlog=1024)
    is_everywhere = listener.getsockname()[0] == "0.0.0.0"
    sealed.set("watch port", listener.getsockname()[1])
    watch = watch_as_first(hosts=hosts, key=key, listener=listener, processes=processes)
    return watch, (EVERYWHERE.format(host=hosts[0]),) if is_everywhere else ()


def new_group(ranks: list[int] | None = None, **settings: Any) -> dist.ProcessGroup:
    """Return a new group, as `torch.distributed.new_group`; only members may use it.

    To other ranks torch gives a number in a group's place.
    """
    return cast("dist.ProcessGroup", dist.new_group(ranks, **settings))


def exchange_facts(
    sealed: SealedStore, ranks: Ranks, *, wait: Wait, secret: JobSecret
) -> list[RankFacts]:
    """Return the facts of all ranks, in order of rank; rank 0 gives the secret where it must."""
    store = sealed.store
    facts = RankFacts(
        host=socket.gethostname(), network=network_of_this_process(), process=own_process()
    )
    sealed.set(f"about/{ranks.rank}", facts)
    if ranks.is_first:
        missing = list(range(ranks.size))
        # Each rank is looked up instead of waiting for all, so that missing ones can be named.
        while missing := [rank for rank in missing if not store.check([f"about/{rank}"])]:
            wait.what = f"{format_ranks(missing)} of {ranks.size}, which did not connect"
            wait.advice = (
                f"check that WORLD_SIZE or the number of tasks equals the number of started ranks, "
                f"{NAMES.removeprefix('check that ')}, and {FIREWALL}"
            )
            secret.answer()
            time.sleep(LOOK_S)
        store.set("all connected", "")
    # These ranks print no note, since that of rank 0 names the missing ones.
    wait.what, wait.noted = "ranks that have not connected to rank 0", False
    store.wait(["all connected"])
    wait.noted = True
    return [sealed.get(f"about/{rank}", RankFacts) for rank in range(ranks.size)]


def choose_interface(
    sealed: SealedStore, ranks: Ranks, networks: list[str], *, address: str, port: int
) -> None:
    """Make gloo use the interface over which the ranks reach each other.

    By itself it takes that of the host name's address, which on many systems is 127.0.1.1.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    # Ranks of rank 0's host cannot find the interface from their own connection to it, which is the
    # loopback: a rank of another host publishes the address that it connects to.
    if len(set(networks)) == 1:
        name = interface_with("127.0.0.1")
    elif networks[ranks.rank] == networks[0]:
        name = interface_with(sealed.get("address of the first", str))
    else:
        sealed.set("address of the first", socket.gethostbyname(address))
        name = interface_towards(address, port)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def connect(
    ranks: Ranks, rendezvous: Rendezvous, *, timeout: timedelta, wait: Wait
) -> tuple[dist.Store, str]:
    """Return the store that the ranks share, and rank 0's address as this rank reaches it.

    Raises:
        InputError: Rank 0 cannot be reached, or its port is in use.
    """
    address, port = rendezvous.address, rendezvous.port
    # By default the constructor waits until all ranks are connected. `exchange_facts` does that
    # instead, and names those that are missing.
    settings: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False}
    # Under torchrun its agent holds the store, and all ranks are its clients.
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_server = ranks.is_first and not has_agent
    if ranks.local_size == ranks.size and not has_agent:
        address = LOCALHOST  # nothing of a job on one host can be reached from another
    try:
        listener = rendezvous.listener
        if is_server and listener is None:
            listener = listen(address, port)
        if listener is not None:
            address = listener.getsockname()[0]
            # Detached, since torch closes the descriptor.
            settings["master_listen_fd"] = listener.detach()
        elif not is_server and rendezvous.affinities is None:
            wait_for_listener(ranks, address, port=port, wait=wait)
        # Where torch is to listen everywhere, the host may not reach itself by its own name.
        place = LOCALHOST if is_server and listener is None else address
        store = dist.TCPStore(place, port, ranks.size, is_master=is_server, **settings)
    except (OSError, RuntimeError) as error:
        if not is_server:
            raise connection_broken(ranks, f"{address}, port {port}") from error
        raise InputError(
            f"MASTER_PORT: rank 0 cannot listen at port {port} of {socket.gethostname()} "
            f"({str(error).splitlines()[0]}); give a free port"
        ) from error
    if has_agent and ranks.local_size == ranks.size:
        address = LOCALHOST
    return store, address


def wait_for_listener(ranks: Ranks, address: str, *, port: int, wait: Wait) -> None:
    """Try to connect until something listens; ranks may start at different times."""
    # torch's own client retries too, but prints a stack for each attempt.
    # One rank prints the note of its host; on rank 0's host that is the second one.
    wait.noted = ranks.local_rank == (1 if ranks.rank == ranks.local_rank else 0)
    began, first = time.monotonic(), f"rank 0 at {address}, port {port}"
    wait.what, wait.advice = first, f"{NAMES}, and {FIREWALL}"
    while True:
        try:
            socket.create_connection((address, port), timeout=ANSWER_S).close()
        except socket.gaierror as error:  # a name server may still answer
            if time.monotonic() - began > ANSWER_S:
                raise InputError(
                    f"{address}: rank 0's host is not known on {socket.gethostname()} "
                    f"({error.strerror}); set MASTER_ADDR and MASTER_PORT to an address of it"
                ) from error
        except ConnectionRefusedError:
            wait.what = f"{first}, where nothing listens yet (connection refused)"
        except OSError as error:
            wait.what = f"{first}, which does not respond ({error})"
        else:
            return
        time.sleep(LOOK_S)


def connection_broken(ranks: Ranks, where: str) -> InputError:
    """Return the error of a connection to rank 0 that ended before all ranks were connected."""
    return InputError(
        f"rank {ranks.rank} on {socket.gethostname()}: the connection to rank 0 at {where} broke "
        "before all ranks were connected; see the output of rank 0"
    )
