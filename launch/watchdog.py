"""Watch the ranks of a job, and end all of them if one fails, dies or hangs.

Every rank keeps a connection to rank 0 and sends a beat over it. A rank that fails sends why; a
killed one's connection is closed by the kernel; one that is stopped, or whose host is gone, sends
no more beats. Rank 0 decides which failure was the first, prints it and sends it to all; then each
rank ends, wherever its main thread is. The end of a compute group may be its own alone.

The ranks of Open MPI and torchrun would continue without their launcher, so each rank watches the
launcher too.
"""

import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
    wait,
)
from queue import Queue
from typing import NoReturn

from common.errors import (
    BAD_INPUT,
    INTERRUPTED,
    STOPPED_TOO_EARLY,
    InputError,
)
from common.machine import ProcessIdentity, kill_if_local
from launch.messages import decode, encode
from launch.ranks import MPI_LAUNCHERS, Ranks
from launch.topology import format_ranks
from launch.waiting import ANSWER_S, BEAT_S

SECRET_S = 20  # In which a rank that has connected proves that it has the job's secret. [s]
MOST_DIGITS = 9  # Of a rank's number
DIED = 1  # Exit code where a rank ended without a message

BYE = b"bye"
BEAT = b"beat"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The end of a job: the code with which all ranks exit, and the text for stderr."""

    rank: int
    code: int
    text: str
    is_silent: bool = False  # Whether the rank may still exist, such as a stopped process


class Watch:
    """One rank's part in the watch; `watch_as_first` and `watch_as_other` make it."""

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, Connection],
        *,
        hosts: Sequence[str],
        processes: Sequence[ProcessIdentity | None] = (),
    ) -> None:
        """Prepare a watch of all ranks; `processes`, if they are known, serve to end a silent one.

        Rank 0 has connections to all others, and these to rank 0.
        """
        self._rank = rank
        self._hosts = hosts
        self._processes = processes
        self._connections = dict(connections)
        # `send_bytes` is not safe between threads, and both the main thread and the watch's send.
        self._sending = threading.Lock()
        self._deciding = threading.Lock()
        self._is_over = False
        self._sent: Failure | None = None  # This rank's own, which rank 0 is to print
        self._thread: threading.Thread | None = None
        self._groups: Sequence[int] = ()
        self.clean_up: Callable[[], None] = lambda: None
        """On rank 0: removes what has been made in vain when bad input or a signal ends the job."""
        self.lost: set[int] = set()
        """Ranks of groups that have ended, as far as this rank is informed."""

    def outlive(self, groups: Sequence[int]) -> None:
        """Let other groups continue when a rank of another group than rank 0's ends; on rank 0.

        `groups` has the group of each rank. If it is empty, the end of any rank ends all.
        """
        self._groups = groups

    def start(
        self,
        *,
        silence_s: float,
        launcher: int | None = None,
        beat: Callable[[], None] | None = None,
    ) -> None:
        """Watch from now on, in a thread that also calls `beat` every second.

        A rank that is silent for longer than `silence_s` has failed. The end of the parent process
        `launcher` stops this rank.
        """
        self._thread = threading.Thread(
            target=self._watch, args=(silence_s, launcher, beat), name="watch", daemon=True
        )
        self._thread.start()

    def fail(self, code: int, text: str) -> NoReturn:
        """End the job, unless another rank has failed before; this process ends with it."""
        failure = Failure(rank=self._rank, code=code, text=text)
        if self._rank == 0:
            self._end(failure)
        self._sent = failure
        self._send(0, encode(failure))
        time.sleep(ANSWER_S)  # the thread ends the process with the failure that was first
        print_failure(failure)
        end_process(failure)

    def close(self) -> None:
        """Disconnect in order; every rank calls it once all have done their work."""
        # From here on a connection that ends is no failure.
        self._is_over = True
        for rank in self._connections:
            self._send(rank, BYE)
        if self._thread is not None:
            self._thread.join(ANSWER_S)
        for connection in self._connections.values():
            connection.close()

    def _watch(
        self, silence_s: float, launcher: int | None, beat: Callable[[], None] | None
    ) -> None:
        ranks = {connection: rank for rank, connection in self._connections.items()}
        last_message = dict.fromkeys(ranks.values(), time.monotonic())
        next_beat = 0.0
        # If all other ranks are lost, rank 0 continues to watch its launcher.
        while ranks or (self.lost and not self._is_over):
            for connection in wait(list(ranks), timeout=max(0.0, next_beat - time.monotonic())):
                assert isinstance(connection, Connection)
                last_message[ranks[connection]] = time.monotonic()
                if not self._receive(ranks[connection], connection):
                    del ranks[connection]
            ranks = {item: rank for item, rank in ranks.items() if rank not in self.lost}
            now = time.monotonic()
            if now < next_beat:
                continue
            next_beat = now + BEAT_S
            if beat is not None:
                beat()
            if is_gone(launcher):
                launcher = None
                stop_without_launcher()
            for rank in ranks.values():
                self._send(rank, BEAT)
                if now - last_message[rank] > silence_s and not self._is_over:
                    reason = f"sent no heartbeat for {silence_s:g} s (suspended, or no network?)"
                    self._end_without(rank, reason, is_silent=True)

    def _receive(self, rank: int, connection: Connection) -> bool:
        """Handle a message; returns whether there may be more."""
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            if not self._is_over:
                self._end_without(rank, "ended without a message (killed, or out of memory?)")
            return False
        if message in (BYE, BEAT):
            return message != BYE
        failure: Failure = decode(message, Failure, sender=f"rank {rank}")
        if self._rank:
            self._end(failure)
        self._end_or_outlive(failure)
        return False

    def _send(self, rank: int, message: bytes) -> None:
        # Of a rank that has gone, `_receive` notices the end, or has done so before.
        with self._sending, suppress(OSError):
            self._connections[rank].send_bytes(message)

    def _end_without(self, rank: int, reason: str, *, is_silent: bool = False) -> None:
        """End all ranks, or the lost rank's group. If rank 0 is lost, rank 1 prints it."""
        text = f"error: rank {rank} on {self._hosts[rank]} {reason}"
        failure = Failure(rank=rank, code=DIED, text=text, is_silent=is_silent)
        if self._rank == 0:
            self._end_or_outlive(failure)
            return
        if self._rank == 1:
            print_failure(failure)
        elif is_silent:  # rank 1 prints first: the launcher ends it as soon as rank 0 is killed
            time.sleep(ANSWER_S)
        if self._sent is not None:
            print_failure(self._sent)
        self._kill_silent(failure)
        end_process(failure)

    def _end_or_outlive(self, failure: Failure) -> None:
        """End all ranks, or if the others may continue, only the failed rank's group; on rank 0."""
        if failure.rank in self.lost:  # it has ended since another of its group has
            return
        groups = self._groups
        group = groups[failure.rank] if groups else 0
        # Rank 0, in the first group, has the weights and writes checkpoints. Ctrl-C ends the whole
        # job.
        if group == 0 or failure.code == INTERRUPTED:
            self._end(failure)
        lost = [rank for rank, its_group in enumerate(groups) if its_group == group]
        self.lost.update(lost)
        outcome = f"group {group} ({format_ranks(lost)}) ends, the other groups continue"
        text = failure.text
        if "\n" in text:  # a traceback
            text = f"{text}\nwarning: rank {failure.rank} has failed: {outcome}"
        else:
            text = f"{text.replace('error: ', 'warning: ', 1)}: {outcome}"
        print_failure(replace(failure, text=text))
        for rank in lost:
            self._send(rank, encode(failure))
        self._kill_silent(failure)

    def _end(self, failure: Failure) -> NoReturn:
        """End this process; on rank 0, print the failure and send it to all others before."""
        if self._rank == 0:
            # Never released: the main thread and the watch's may both get here, and the first
            # failure counts.
            self._deciding.acquire()
            if failure.code in (BAD_INPUT, INTERRUPTED, STOPPED_TOO_EARLY):
                self.clean_up()  # launchers may end this rank as soon as another one has ended
            print_failure(failure)
            for rank in self._connections:
                self._send(rank, encode(failure))
            # Wait until the others have ended: launchers kill the remaining ranks once one has.
            others, has_died = self._connections.items(), failure.code == DIED
            remaining = {item for rank, item in others if not has_died or rank != failure.rank}
            end = time.monotonic() + ANSWER_S
            while remaining and time.monotonic() < end:
                for connection in wait(list(remaining), timeout=0.1):
                    assert isinstance(connection, Connection)
                    try:
                        connection.recv_bytes()
                    except (EOFError, OSError):
                        remaining.discard(connection)
            time.sleep(BEAT_S)  # their supervisors forward the exit codes
        self._kill_silent(failure)  # last, since the launcher then kills this rank too
        end_process(failure)

    def _kill_silent(self, failure: Failure) -> None:
        """End a rank of this host that is stopped: the launcher would wait for it forever."""
        # The host name counts too, since containers may have equal process ids: a rank behind a
        # failed network is alive, and its side of the job may be the one that continues.
        is_local = self._hosts[failure.rank] == self._hosts[self._rank]
        if failure.is_silent and self._processes and is_local:
            kill_if_local(self._processes[failure.rank])


def print_failure(failure: Failure) -> None:
    """Print all of the message to stderr; ignore a closed pipe."""
    with suppress(OSError):
        sys.stdout.flush()
        print(failure.text, file=sys.stderr, flush=True)


def end_process(failure: Failure) -> NoReturn:
    """End now: the main thread may be in an exchange that never returns."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(failure.code)


def watch_as_first(
    *,
    hosts: Sequence[str],
    key: bytes,
    listener: socket.socket,
    processes: Sequence[ProcessIdentity | None] = (),
) -> Watch:
    """Return rank 0's watch, once all others, with the secret `key`, have come to the `listener`.

    It is closed then.
    """
    expected = set(range(1, len(hosts)))
    arrived: Queue[tuple[int, Connection]] = Queue()
    connections: dict[int, Connection] = {}

    def accept() -> None:
        while expected:
            try:
                accepted, _ = listener.accept()
            except OSError:  # the listener is closed, or a stranger has taken all descriptors
                time.sleep(BEAT_S)
                continue
            # A stranger who connects and says nothing holds up nobody else.
            threading.Thread(target=identify, args=(accepted,), daemon=True).start()

    def identify(accepted: socket.socket) -> None:
        accepted.settimeout(None)
        limit = struct.pack("ll", SECRET_S, 0)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection = Connection(accepted.detach())
        try:
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            arrived.put((int(connection.recv_bytes(MOST_DIGITS)), connection))
        except (AuthenticationError, EOFError, OSError, ValueError):
            connection.close()

    with listener:
        threading.Thread(target=accept, name="accept", daemon=True).start()
        while expected:
            rank, connection = arrived.get()
            if rank in expected:
                expected.discard(rank)
                connections[rank] = connection
        listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
    for connection in connections.values():
        with socket.socket(fileno=os.dup(connection.fileno())) as accepted:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    return Watch(0, connections, hosts=hosts, processes=processes)


def watch_as_other(
    rank: int,
    *,
    hosts: Sequence[str],
    key: bytes,
    address: tuple[str, int],
    processes: Sequence[ProcessIdentity | None] = (),
) -> Watch:
    """Return another rank's watch, connected to rank 0's at (host, port).

    Raises:
        InputError: Something else listens there.
    """
    try:
        connection = Client(address, authkey=key)
        connection.send_bytes(str(rank).encode())
    except (AuthenticationError, EOFError, OSError) as error:
        raise InputError(
            f"rank {rank} on {hosts[rank]}: rank 0 did not prove at {address[0]}, port "
            f"{address[1]}, that it has the job's secret ({error}); check that no other job uses "
            "MASTER_PORT, and that nothing forwards this port"
        ) from error
    return Watch(rank, {0: connection}, hosts=hosts, processes=processes)


def launcher_process(ranks: Ranks, environment: Mapping[str, str]) -> int | None:
    """Return the launcher's process on this host; None where it may end before the ranks.

    A script that starts ranks with `RANK` and `WORLD_SIZE` may end before them.
    """
    stays = ranks.launcher in (*MPI_LAUNCHERS, "slurm") or "TORCHELASTIC_RUN_ID" in environment
    return os.getppid() if stays else None


def is_gone(launcher: int | None) -> bool:
    """Return whether the launcher has ended: its children have a new parent."""
    return launcher is not None and os.getppid() != launcher


def stop_without_launcher() -> None:
    """Send this rank the SIGTERM that its launcher would have sent.

    Its output is discarded from now on: the launcher's pipes are broken, and a line of progress
    would end the run before its checkpoint.
    """
    with suppress(OSError):  # at once: lines of two ranks do not mix
        os.write(2, b"error: the launcher has ended; stopping as on SIGTERM\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    os.kill(os.getpid(), signal.SIGTERM)
