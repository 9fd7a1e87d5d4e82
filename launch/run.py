"""Start ranks with mpirun, and print its command line.

Uses the cluster's mpirun if one is on PATH, otherwise MPICH of this environment. The options are
the same for MPICH, Intel MPI and Open MPI:

  retinanet launch run --np 8 -- retinanet train --config openimages.yaml data.root=/data/openimages
  retinanet launch run --np 16 --hosts node1,node2 -- retinanet train --config openimages.yaml
  retinanet launch run --np 12 --hosts node1:8,node2:4 -- retinanet train --config openimages.yaml
  retinanet launch run --np 16 --hostfile hosts -- retinanet train --config openimages.yaml
  retinanet launch run --np 8 --dry-run -- retinanet train --config openimages.yaml  # only print it

The launcher binds no rank to cores: each rank pins itself to its part of its host, as shown by
`retinanet launch plan`. Scripts, `python …` and `retinanet …` run with the Python of this
environment; every host must have both at the same path, and allow ssh from this host without a
password. Without --hosts, ranks start on this host, or on the hosts of the batch job (Slurm, PBS,
LSF).

A hostfile has one host per line, with an optional number of slots (ranks):

  node1:8            # as MPICH and Intel MPI write it
  node1 slots=8      # as Open MPI writes it
  node1              # without numbers, all hosts run the same number of ranks

Hosts of --hosts or --hostfile that have not started after 30 s are listed; after 300 s the job
ends.

The exit status is that of mpirun. On Ctrl-C, SIGTERM, SIGHUP, or if this process is killed, the
ranks write a checkpoint before they end; a second Ctrl-C ends them immediately.
"""

import argparse
import ctypes
import math
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from subprocess import Popen
from types import FrameType
from typing import Any

from common.cli import add_command, command_to_run, number_of_ranks
from common.errors import FINISHED, INTERRUPTED, OUR_BUG, STOPPED_BY_SIGNAL
from common.machine import read_proc_text, read_status
from common.options import argument, flag, included, option
from common.processes import (
    CALLER,
    PR_SET_PDEATHSIG,
    end_with_caller,
    start_process,
    stop_process,
    wait_for,
)
from common.program import command_words
from launch.hosts import Where, require_known_hosts
from launch.mpirun import (
    HELPER,
    STARTED_BY_US,
    by_this_python,
    choose_mpirun,
    mpirun_command,
    search_path,
)
from launch.ranks import Ranks
from launch.rendezvous import interface_addresses
from launch.waiting import BEAT_S, NOTE_S, write_line


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `retinanet launch run`."""

    ranks: int = option("ranks on all hosts", name="--np", parse=number_of_ranks, metavar="N")
    where: Where = included(Where)
    dry_run: bool = flag("only print the command")
    command: list[str] = argument(
        "the command of each rank", metavar="COMMAND", nargs=argparse.REMAINDER
    )


def add_run_command(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `run` to the commands of `retinanet launch`."""
    parser = add_command(kinds, "run", about=__doc__ or "", options=RunOptions, run=run_ranks)
    parser.usage = "%(prog)s --np N [options] -- COMMAND …"


def run_ranks(options: RunOptions) -> int:
    """Run the command on a number of ranks; return the exit status of mpirun."""
    command, dry_run, hostfile = options.command, options.dry_run, options.where.hostfile
    ranks_by_host = options.where.ranks_by_host(options.ranks)
    program = command_to_run(command, example="retinanet train")
    names = [name for name, _ in ranks_by_host]
    if not dry_run:
        option = "--hosts" if hostfile is None else f"--hostfile {hostfile}"
        require_known_hosts(names, os.environ, option=option)
    launcher = choose_mpirun(options.where.mpirun)
    if not dry_run:
        given = ["run", "--np", str(options.ranks), *options.where.as_given(), "--"]
        # In time for the command, which names it for Open MPI.
        os.environ[STARTED_BY_US] = shlex.join([*command_words("launch"), *given])
    mpirun_line = mpirun_command(
        launcher,
        by_this_python(program),
        ranks=options.ranks,
        hosts=ranks_by_host,
        environment=os.environ,
        is_root=os.geteuid() == 0,
        is_terminal=sys.stdout.isatty(),
    )
    # On stderr, since stdout is that of the ranks.
    print(shlex.join(mpirun_line), file=sys.stdout if dry_run else sys.stderr, flush=True)
    if dry_run:
        return FINISHED
    end_with_caller()
    os.environ.pop(CALLER, None)  # the ranks have no such descriptor
    os.environ["PATH"] = search_path(launcher.path, os.environ)
    # Open MPI's kills ranks half a second after SIGINT and SIGTERM (version 5; two seconds in 4).
    stop_signal = signal.SIGUSR1 if launcher.family == "open-mpi" else signal.SIGTERM
    return run_with_graceful_stop(mpirun_line, stop_signal=stop_signal, hosts=names)


def stopping_notes(ranks: Ranks, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note where this rank's launcher leaves too little time for a checkpoint."""
    if ranks.launcher != "open-mpi" or STARTED_BY_US in environment:
        return ()
    return (
        "open-mpi: mpirun kills ranks 0.5 to 2 s after Ctrl-C or SIGTERM, too early for a "
        "checkpoint; stop it with kill -USR1, or start it with retinanet launch run",
    )


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_with_graceful_stop(
    command: Sequence[str],
    *,
    stop_signal: signal.Signals,
    patience_s: float = NOTE_S,
    hosts: Sequence[str] = (),
) -> int:
    """Run a launcher of ranks; returns its exit status, or 130 after a second Ctrl-C.

    The first signal, and the end of this process, become `stop_signal`, which the launcher forwards
    to its ranks without killing them soon after, so that they can write a checkpoint. The next
    signals reach it as they are. For `patience_s` and `hosts` see `JobMonitor`.
    """
    # Blocked until the launcher runs and can receive them; ignored ones (nohup, `&`) stay ignored.
    stops = [number for number in STOPS if signal.getsignal(number) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    # Loaded before `fork`, after which locks may be held by threads that the child lacks.
    prctl = ctypes.CDLL(None).prctl

    def prepare_child() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        prctl(PR_SET_PDEATHSIG, stop_signal)

    process = start_process(command, preexec_fn=prepare_child)
    forwarded: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        forwarded.append(number)  # before the next one interrupts this function
        to_send = stop_signal if len(forwarded) == 1 else number
        with suppress(ProcessLookupError):
            os.kill(skip_shells(process.pid, stop_signal), to_send)

    previous = {number: signal.signal(number, forward) for number in stops}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    monitor = JobMonitor(process, patience_s=patience_s, hosts=hosts)
    try:
        status = wait_for(process, monitor.look, every_s=BEAT_S)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if monitor.has_killed:
        status = OUR_BUG
    if signal.SIGINT in forwarded[1:] and status not in (FINISHED, STOPPED_BY_SIGNAL):
        return INTERRUPTED
    # As in shells: 128 plus the number of the signal that ended the process.
    return status if status >= 0 else 128 - status


SHELLS = ("sh", "bash", "dash", "ksh", "zsh")


def skip_shells(process: int, number: int) -> int:
    """Return the process, or its child if it is a shell without a trap, such as Intel's mpirun."""
    # The signal would end the shell only, and the ranks would continue without a launcher.
    while children := child_processes(process):
        folder = Path(f"/proc/{process}")
        # A hexadecimal mask, in which signal n has bit n − 1.
        caught = int(read_status(folder / "status").get("SigCgt", "0"), 16)
        try:
            is_shell = (folder / "exe").readlink().name in SHELLS
        except OSError:  # it has ended
            break
        if not is_shell or caught & 1 << number - 1:
            break
        process = children[0]
    return process


RANK_OF_OPEN_MPI = b"\0OMPI_COMM_WORLD_RANK="
MOST_HOSTS = 32  # With more, launchers connect hosts as a tree, and not each to the first
LIMIT_S = 300.0  # When mpirun is ended because of hosts that have not started


class JobMonitor:
    """Kills an mpirun that would wait forever for unreachable hosts.

    It waits for the helper processes of other hosts: at the start, until they connect, and at the
    end, until they confirm it, for `patience_s` after this host's ranks have ended.
    """

    def __init__(self, process: "Popen[Any]", *, patience_s: float, hosts: Sequence[str]) -> None:
        self.has_killed = False
        self._process = process
        self._patience_s = patience_s
        self._hosts = hosts if len(hosts) <= MOST_HOSTS else ()
        self._began = time.monotonic()
        self._is_noted = False
        self._helpers: list[int] = []
        self._gone_since = math.inf  # this host's helper, or its ranks

    def look(self) -> None:
        """Check the job; kill mpirun and print the reason if a host is unreachable."""
        now = time.monotonic()
        if not self._helpers:
            self._helpers = [*filter(is_helper, process_tree(self._process.pid))]
        elif not any(map(is_helper, self._helpers)):
            self._gone_since = min(self._gone_since, now)
        if now - self._gone_since > self._patience_s:
            self._kill(
                f"the ranks of this host ended {self._patience_s:g} s ago, but mpirun waits for "
                "another host that does not respond"
            )
        elif self._hosts and now - self._began > NOTE_S:
            missing = missing_hosts(self._process.pid, self._hosts)
            if not missing:
                self._hosts = ()
            elif now - self._began > LIMIT_S:
                self._kill(f"--hosts: {format_missing(missing, 'in time;')}")
            elif not self._is_noted:
                self._is_noted = True
                times = f"within {NOTE_S:g} s (limit: {LIMIT_S:g} s);"
                write_line(f"note: {format_missing(missing, times)}")

    def _kill(self, reason: str) -> None:
        write_line(f"error: {reason}; mpirun was killed")
        self._process.send_signal(signal.SIGSTOP)  # or MPICH's would complain about the others' end
        # Open MPI's remote shells have groups of their own, and would keep our output open.
        for below in [*process_tree(self._process.pid)][1:]:
            with suppress(ProcessLookupError):
                os.kill(below, signal.SIGKILL)
        stop_process(self._process)
        self.has_killed = True


def format_missing(hosts: Sequence[str], when: str) -> str:
    """Format the message `host a has not started in time; check that …`."""
    noun, verb = ("host", "has") if len(hosts) == 1 else ("hosts", "have")
    return (
        f"{noun} {', '.join(hosts)} {verb} not started {when} check that `ssh {hosts[0]} true` "
        f"works, and that no firewall blocks TCP ports from there to {socket.gethostname()} "
        "(mpirun listens at a random port)"
    )


def is_helper(process: int) -> bool:
    """Return whether a process is a helper, or a rank of Open MPI, that has not ended."""
    status = read_status(Path(f"/proc/{process}/status"))
    if status.get("Name") == HELPER:
        return status["State"][0] not in "ZX"
    try:
        return RANK_OF_OPEN_MPI in b"\0" + Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it has ended, or is not ours
        return False


def child_processes(process: int) -> list[int]:
    """Return the running processes that a process has started; none where Linux hides them."""
    text = read_proc_text(Path(f"/proc/{process}/task/{process}/children"))
    return [int(word) for word in text.split()]


def missing_hosts(launcher: int, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts from which nothing is connected with the launcher on this host.

    A host may connect from an address that its name does not have; such connections count for any.
    """
    local = {*interface_addresses().values(), "127.0.0.1", "127.0.1.1", "::1"}
    addresses: dict[str, set[str]] = {host: set() for host in hosts}
    for host in hosts:
        with suppress(OSError, UnicodeError):  # the name means nothing here
            addresses[host] = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    peers = [peer for peer in connected(launcher) if peer not in local]
    missing = tuple(host for host in hosts if not addresses[host] & {*local, *peers})
    named = set().union(*addresses.values())
    unnamed = [peer for peer in peers if peer not in named]
    return missing if len(unnamed) < len(missing) else ()


ESTABLISHED = "01"  # State of a connection in /proc/net/tcp
REMOTE_SHELLS = ("ssh", "rsh")
"""Their connections show that a host is reached, not that its helper reaches this one."""


def connected(launcher: int) -> Iterator[str]:
    """Yield the other end's address of each connection of the launcher and what it has started."""
    processes = process_tree(launcher, without=REMOTE_SHELLS)
    sockets = {inode for process in processes for inode in socket_inodes(process)}
    for table in ("tcp", "tcp6"):
        for line in read_proc_text(Path(f"/proc/{launcher}/net/{table}")).splitlines()[1:]:
            # Field 2 is the remote address, 3 the state, 9 the number of the socket.
            fields = line.split()
            if fields[3] == ESTABLISHED and fields[9] in sockets:
                yield parse_address(fields[2].partition(":")[0])


def process_tree(process: int, *, without: Sequence[str] = ()) -> Iterator[int]:
    """Yield a process and all below it, without programs of some names and what is below them."""
    if not without or read_status(Path(f"/proc/{process}/status")).get("Name") not in without:
        yield process
        for child in child_processes(process):
            yield from process_tree(child, without=without)


def socket_inodes(process: int) -> Iterator[str]:
    """Yield the kernel's numbers of a process's sockets."""
    with suppress(OSError):  # it has ended, or is not ours
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


def parse_address(text: str) -> str:
    """Return an address of /proc/net/tcp, whose 32-bit words are little-endian, as text."""
    raw = bytes.fromhex(text)
    address = ip_address(b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)))
    # A socket of IPv6 shows a peer of IPv4 as ::ffff:a.b.c.d.
    return str(getattr(address, "ipv4_mapped", None) or address)
