"""Hostfiles: the hosts of a cluster, and how many ranks each of them is to run.

One host a line, with the number of its places if it has one, in MPICH's way (`node1:8`) or in Open
MPI's (`node1 slots=8`); a host may also stand on one line for each place, as batch systems write
it. `#` starts a comment.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from launch.start.hosts import hosts_with_ranks
from retinanet.errors import InputError
from retinanet.regular_files import read_text

LINE = re.compile(
    r"([A-Za-z0-9_][\w.-]*)(?::(\d{1,6})|\s+slots\s*=\s*(\d{1,6}))?(?:\s+max[_-]slots\s*=\s*\d+)?",
    re.ASCII,
)
"""A name cannot begin with a dash: launchers hand it to ssh, which would take it for an option."""

MOST_BYTES = 10_000_000
"""Of a hostfile: a line for each of a hundred thousand ranks is less."""


@dataclass(frozen=True)
class Host:
    """A line of a hostfile."""

    name: str
    slots: int | None
    """Ranks that it has places for; None if the line does not say."""


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a file in its order, each once.

    Raises:
        InputError: The file cannot be read, holds no host, or a line is none.
    """
    try:
        text = read_text(path, most_bytes=MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise InputError(f"--hostfile: {path}: {reason}; give a file of one host a line") from error
    lines = [
        read_line(line, place=f"{path}:{number}")
        for number, whole in enumerate(text.splitlines(), start=1)
        if (line := whole.partition("#")[0].strip())
    ]
    if not lines:
        raise InputError(f"--hostfile: {path} names no host; write one host a line, such as node1")
    return each_once(lines, path)


def read_line(line: str, *, place: str) -> Host:
    """A line without its comment."""
    match = LINE.fullmatch(line)
    slots = (match[2] or match[3]) if match else None
    if match is None or (slots and int(slots) == 0):
        raise InputError(
            f"--hostfile: {place}: found {line!r}, expected HOST, HOST:SLOTS or HOST slots=N"
        )
    return Host(match[1], int(slots) if slots else None)


def each_once(lines: list[Host], path: Path) -> tuple[Host, ...]:
    """Hosts of several lines have the sum of their places, a line without a number being one."""
    times = Counter(host.name for host in lines)
    if max(times.values()) > 1:
        slots: Counter[str] = Counter()
        for host in lines:
            slots[host.name] += host.slots or 1
        return tuple(Host(name, count) for name, count in slots.items())
    silent = [host.name for host in lines if host.slots is None]
    if silent and len(silent) < len(lines):
        raise InputError(
            f"--hostfile: {path}: {silent[0]} has no number of slots and others have; give every "
            f"host one, such as {silent[0]}:8, or none"
        )
    return tuple(lines)


def ranks_of_hosts(hosts: tuple[Host, ...], *, ranks: int) -> tuple[tuple[str, int], ...]:
    """How many of `ranks` each host runs: all its slots, or as many as every other.

    Raises:
        InputError: Neither fits; the message names numbers that do.
    """
    slots = [host.slots for host in hosts if host.slots is not None]
    if not slots:
        return hosts_with_ranks(",".join(host.name for host in hosts), ranks=ranks)
    if ranks == sum(slots):
        return tuple((host.name, count) for host, count in zip(hosts, slots, strict=True))
    share, rest = divmod(ranks, len(hosts))
    if share and not rest and share <= min(slots):
        return tuple((host.name, share) for host in hosts)
    raise InputError(
        f"--np {ranks}: does not fit the {sum(slots)} slots of the hosts ({len(hosts)}); "
        f"use {choices(slots, ranks)}"
    )


def choices(slots: list[int], ranks: int) -> str:
    """The numbers of ranks that fit, at most the three next to what was asked for."""
    even = {len(slots) * share for share in range(1, min(slots) + 1)}
    nearest = sorted(even | {sum(slots)}, key=lambda fitting: abs(fitting - ranks))[:3]
    *others, last = sorted(nearest)
    return f"--np {', '.join(map(str, others))} or {last}" if others else f"--np {last}"
