"""A stranger who attacks each port of a job, until stdin ends.

attacker.py TEXT ADDRESS MARKER: the ports are those of processes with TEXT in their command line,
which a scan would find too, at an ADDRESS of their host. Prints a line of JSON for each value
that it reads in torch's store. Nothing may create the folder MARKER.
"""

import ctypes
import json
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tests.launch.listening import Listening, listening_of_job

KEYS = (
    *("watch key", "watch port", "secret", "secret's source", "all connected"),
    *(f"about/{rank}" for rank in range(3)),
    *(f"stretch 1/results of group {group}/{step}" for group in range(3) for step in range(3)),
)
PR_SET_PDEATHSIG = 1  # Of Linux's prctl: the signal to this process when its parent has ended
PREFIXES = ("", "/", "default_pg/", "default_pg/0//", "cpu//")


class Malice:
    """An object whose pickle creates a file."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


def rubbish(marker: str) -> list[bytes]:
    """Return messages: pickles, bare and as multiprocessing frames them, and random bytes."""
    malice = pickle.dumps(Malice(marker))
    framed = struct.pack("!i", len(malice)) + malice
    # Not zeros alone: they are the number of gloo's first connection, whose place they would take.
    # That remains possible, and ends a run in its start: SECURITY.md says so.
    empty_frame = bytes(4) + b"\x01" * 4092
    return [malice, framed, empty_frame, os.urandom(4096), b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n"]


def throw(address: str, port: int, marker: str) -> list[socket.socket]:
    """Send rubbish to a port; the connections stay open, and one says nothing."""
    connections = []
    for content in (*rubbish(marker), b""):
        with suppress(OSError):
            connections.append(socket.create_connection((address, port), timeout=2))
            connections[-1].sendall(content)
    return connections


def read_store(address: str, port: int) -> None:
    """Print what a store at a port tells a stranger, now and later."""
    timeout = timedelta(seconds=3)
    try:
        store = dist.TCPStore(
            address, port, is_master=False, timeout=timeout, wait_for_workers=False
        )
    except RuntimeError:  # no store
        return
    names = {f"{prefix}{key}" for prefix in PREFIXES for key in KEYS}
    while True:
        for name in sorted(names):
            with suppress(RuntimeError):  # removed meanwhile
                if store.check([name]):
                    value = bytes(store.get(name)).hex()
                    sys.stdout.write(
                        json.dumps({"port": port, "name": name, "value": value}) + "\n"
                    )
                    sys.stdout.flush()
                    names.discard(name)
        time.sleep(0.2)


def main() -> None:
    """Attack each port as soon as it is opened."""
    text, address, marker = sys.argv[1:]
    known: set[Listening] = set()
    kept = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        for item in listening_of_job(text) - known:
            known.add(item)
            kept += throw(address, item.port, marker)
            # In a process of its own: torch's client may wait for ever for another server's reply.
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                read_store(address, item.port)
                os._exit(0)


if __name__ == "__main__":
    main()
