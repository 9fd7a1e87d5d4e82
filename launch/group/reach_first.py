"""The way of the ranks to rank 0's store, and what to say where there is none."""

import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from launch.group.deadline import Wait
from launch.group.interfaces import SECONDS_TO_CONNECT, reachable
from launch.group.meeting import Meeting
from launch.host.cpu_lists import format_cpu_list
from launch.ranks import Ranks
from retinanet.errors import InputError

LOCALHOST = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_FOR_NAMES = 5.0
"""In which a name server may answer after all."""
SECONDS_REFUSED = 5.0
"""Ranks that start together differ by less; then a refused connection is worth a note."""
NAMES = "check that MASTER_ADDR, MASTER_PORT or host names are right"
FIREWALL = "that no firewall blocks TCP ports between the hosts"


def connect(
    ranks: Ranks, meeting: Meeting, *, timeout: timedelta, wait: Wait
) -> tuple[dist.Store, str]:
    """The store that the ranks share, and rank 0's address as this rank reaches it.

    Args:
        ranks: Which rank this is.
        meeting: Where rank 0 is.
        timeout: Of the store's operations.
        wait: Is told what this rank waits for.

    Raises:
        InputError: Rank 0 cannot be reached, or its port is in use.
    """
    address = meeting.addresses[0]
    settings: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False}
    # Under torchrun its agent holds the store, and all ranks are its clients.
    is_server = ranks.is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if meeting.listener is not None:
        settings["master_listen_fd"] = meeting.listener.detach()
    elif is_server:
        address = LOCALHOST  # by its own name or MASTER_ADDR a host may not reach itself
    elif meeting.affinities is not None:  # rank 0 listens already
        address = reach_listener(ranks, meeting)
    else:
        wait_for_answer(ranks, address, port=meeting.port, wait=wait)
    try:
        store = dist.TCPStore(address, meeting.port, ranks.size, is_master=is_server, **settings)
    except RuntimeError as error:
        if not is_server:
            raise broken(ranks, f"{address}, port {meeting.port}") from error
        raise InputError(
            f"MASTER_PORT: rank 0 cannot listen at port {meeting.port} of {socket.gethostname()} "
            f"({str(error).splitlines()[0]}); give a free port"
        ) from error
    return store, address


def reach_listener(ranks: Ranks, meeting: Meeting) -> str:
    """The address of rank 0 that answers; it listens already.

    Raises:
        InputError: None does.
    """
    try:
        return reachable(meeting.addresses, meeting.port)
    except ConnectionError as error:
        raise InputError(
            f"rank {ranks.rank} on {socket.gethostname()}: rank 0 {error}; check {FIREWALL}, or "
            "name the network in GLOO_SOCKET_IFNAME"
        ) from error


def wait_for_answer(ranks: Ranks, address: str, *, port: int, wait: Wait) -> None:
    """Try to connect until something listens; ranks may start at different times.

    Raises:
        InputError: The host's name is not known.
    """
    began, is_noted = time.monotonic(), False
    first = f"rank 0 at {address}, port {port}"
    wait.what, wait.advice, wait.noted = first, f"{NAMES}, and {FIREWALL}", speaks(ranks)
    while True:
        try:
            socket.create_connection((address, port), timeout=SECONDS_TO_CONNECT).close()
        except socket.gaierror as error:
            if time.monotonic() - began > SECONDS_FOR_NAMES:
                raise InputError(
                    f"{address}: rank 0's host is not known on {socket.gethostname()} "
                    f"({error.strerror}); set MASTER_ADDR and MASTER_PORT to an address of it"
                ) from error
        except ConnectionRefusedError:
            wait.what = f"{first}, where nothing listens yet (connection refused)"
            if not is_noted and time.monotonic() - began > SECONDS_REFUSED:
                is_noted = True
                note_refused(ranks, f"{address}, port {port}")
        except OSError as error:
            wait.what = f"{first}, where nothing answers ({error})"
        else:
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def speaks(ranks: Ranks) -> bool:
    """Whether this rank prints notes for its host; on rank 0's host the second one does."""
    return ranks.local_rank == (1 if ranks.rank == ranks.local_rank else 0)


def note_refused(ranks: Ranks, where: str) -> None:
    """Print that nothing listens where rank 0 should."""
    if speaks(ranks):
        print(
            f"note: rank {ranks.rank} on {socket.gethostname()}: connection refused at {where}: "
            "rank 0 has not come yet, or MASTER_ADDR or MASTER_PORT is another's; trying on",
            file=sys.stderr,
            flush=True,
        )


def wait_for_all(store: dist.Store, ranks: Ranks, *, wait: Wait) -> None:
    """On rank 0: wait until every rank has set its key `about/RANK`."""
    missing = list(range(ranks.size))
    while missing := [rank for rank in missing if not store.check([f"about/{rank}"])]:
        plural = "s" if len(missing) > 1 else ""
        wait.what = f"rank{plural} {format_cpu_list(missing)} of {ranks.size}, which did not come"
        wait.advice = (
            f"check that WORLD_SIZE or the number of tasks is as many as were started, "
            f"{NAMES.removeprefix('check that ')}, and {FIREWALL}"
        )
        time.sleep(SECONDS_BETWEEN_LOOKS)


def broken(ranks: Ranks, where: str) -> InputError:
    """The connection to rank 0 has ended before all ranks had met."""
    return InputError(
        f"rank {ranks.rank} on {socket.gethostname()}: the connection to rank 0 at {where} broke "
        "before all ranks had met; rank 0's own output says why"
    )
