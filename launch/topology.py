"""A host's CPUs, with the core, socket and memory node of each.

It is read from `/sys/devices/system`, from a copy of that folder, or from the output of `lscpu -p`:
comment lines, then one line of numbers for each CPU. Placement sees a host as sockets of memory
nodes of physical cores. Sets of CPUs and memory nodes are written as the kernel does: `0-3,8`.
"""

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from common.errors import InputError
from common.files import or_unreadable, read_text
from common.wording import counted

SYSFS = Path("/sys/devices/system")


@dataclass(frozen=True, order=True)
class Cpu:
    """One hardware thread, as the kernel numbers it."""

    cpu: int  # The kernel's number, which pinning uses
    core: int  # Physical core, counted over the whole host in the order of its lowest CPU
    socket: int
    node: int  # NUMA node; 0 where the host has none
    kind: int = 0  # 0: of the fastest cores; larger where the cores are slower


@dataclass(frozen=True)
class Topology:
    """The online CPUs of a host, or those of them that may be used, in order of number."""

    cpus: tuple[Cpu, ...]

    def restricted(self, allowed: Collection[int]) -> "Topology":
        """Return the same host with the allowed CPUs only; cores keep their numbers."""
        return Topology(tuple(cpu for cpu in self.cpus if cpu.cpu in allowed))

    @property
    def core_count(self) -> int:
        """The number of physical cores of its CPUs."""
        return len({cpu.core for cpu in self.cpus})

    @property
    def slower(self) -> tuple[Cpu, ...]:
        """The CPUs of efficiency cores, where there are performance cores too."""
        fastest = min((cpu.kind for cpu in self.cpus), default=0)
        return tuple(cpu for cpu in self.cpus if cpu.kind > fastest)


def read_topology(path: Path | None = None) -> Topology:
    """Return the topology of this machine, or of one that a file or folder describes.

    A file has the output of `lscpu -p=CPU,CORE,SOCKET,NODE`, a folder a copy of
    `/sys/devices/system` (or of `/sys`, or of its `devices`).

    Raises:
        InputError: The description is missing or cannot be understood; names file and line.
    """
    if path is None:
        return read_this_machine()
    if not path.is_dir():
        speeds = read_lscpu(path)
    else:
        folder = next((path / place for place in PLACES if (path / place).is_dir()), None)
        if folder is None:
            raise InputError(
                f"{path}: no {PLACES[1]} below it; give a copy of /sys, or lscpu's output"
            )
        speeds = read_sysfs(folder)
    if not speeds:
        raise InputError(f"{path}: no CPU is online there; give a copy of /sys, or lscpu's output")
    return make_topology(speeds)


def read_this_machine(sysfs: Path = SYSFS) -> Topology:
    """Read the topology from sysfs; if it is hidden, every CPU is a core of one socket."""
    if any((sysfs / "cpu").glob("cpu[0-9]*/topology/thread_siblings_list")):
        return make_topology(read_sysfs(sysfs / "cpu"))
    return Topology(
        tuple(Cpu(cpu, core=cpu, socket=0, node=0) for cpu in sorted(os.sched_getaffinity(0)))
    )


Speeds = dict[Cpu, float]
"""The online CPUs as a host names their cores, which may repeat from socket to socket, with their
speeds, in a unit that is the same for all CPUs of the host; 0: unknown."""
SLOWER = 0.85
"""Cores are of a slower kind below this share of the speed of the kind before: those of one kind
differ too, by up to a tenth of their highest frequency."""


def kinds_of_cores(speeds: Iterable[float]) -> dict[float, int]:
    """Return the kind of each speed, from 0, the fastest; all alike where one is unknown."""
    kinds: dict[float, int] = {}
    kind, fastest = -1, math.inf
    for speed in sorted(set(speeds), reverse=True):
        if speed < SLOWER * fastest:
            kind, fastest = kind + 1, speed
        kinds[speed] = kind
    return dict.fromkeys(kinds, 0) if 0 in kinds else kinds


def make_topology(speeds: Speeds) -> Topology:
    """Return the topology, with cores numbered over the whole host."""
    cores: dict[tuple[int, int], int] = {}
    kinds = kinds_of_cores(speeds.values())

    def numbered(cpu: Cpu) -> Cpu:
        core = cores.setdefault((cpu.socket, cpu.core), len(cores))
        return replace(cpu, core=core, kind=kinds[speeds[cpu]])

    return Topology(tuple(map(numbered, sorted(speeds))))


Core = tuple[int, ...]  # The CPUs (hyperthreads) of a physical core, in order of number


@dataclass(frozen=True)
class Node:
    """The part of a NUMA node that lies on one socket."""

    number: int
    cores: tuple[Core, ...]  # In order of their lowest CPU, the same however the host was described


@dataclass(frozen=True)
class Socket:
    """A processor package."""

    number: int
    nodes: tuple[Node, ...]

    @cached_property
    def cores(self) -> tuple[Core, ...]:
        """All its cores, node by node."""
        return tuple(core for node in self.nodes for core in node.cores)


def list_sockets(topology: Topology) -> tuple[Socket, ...]:
    """Return the sockets that have CPUs, in order; a node may have CPUs on two of them."""
    tree: dict[int, dict[int, dict[int, list[int]]]] = {}
    for cpu in topology.cpus:
        nodes = tree.setdefault(cpu.socket, {})
        nodes.setdefault(cpu.node, {}).setdefault(cpu.core, []).append(cpu.cpu)
    sockets = []
    for number, nodes in sorted(tree.items()):
        cores = ((node, tuple(map(tuple, nodes[node].values()))) for node in sorted(nodes))
        sockets.append(Socket(number, tuple(Node(node, its_cores) for node, its_cores in cores)))
    return tuple(sockets)


def list_sockets_of_ranks(topology: Topology) -> tuple[Socket, ...]:
    """Return the sockets among which ranks are divided, with the fastest kind of cores only.

    Sockets that share a memory node count as one, with the lowest number: hypervisors often make
    each CPU a socket of its own.
    """
    joined = {cpu.socket: cpu.socket for cpu in topology.cpus}
    of_nodes: dict[int, set[int]] = {}
    for cpu in topology.cpus:
        of_nodes.setdefault(cpu.node, set()).add(cpu.socket)
    for sockets in of_nodes.values():
        firsts = {joined[socket] for socket in sockets}
        if len(firsts) > 1:
            joined |= {socket: min(firsts) for socket, first in joined.items() if first in firsts}
    # Cores of one real socket stay next to each other.
    by_socket = sorted(topology.cpus, key=lambda cpu: (cpu.socket, cpu.cpu))
    slower = set(topology.slower)
    return list_sockets(
        Topology(
            tuple(replace(cpu, socket=joined[cpu.socket]) for cpu in by_socket if cpu not in slower)
        )
    )


def count_cores(sockets: Sequence[Socket]) -> int:
    """Return the number of physical cores of all sockets."""
    return sum(len(socket.cores) for socket in sockets)


def describe_sockets(sockets: Sequence[Socket]) -> str:
    """Describe sockets as `2 sockets of 28 cores`, or `2 sockets of 28 cores and 4 NUMA nodes`."""

    def span(counts: Sequence[int]) -> str:
        least, greatest = min(counts), max(counts)
        return f"{least}" if least == greatest else f"{least} to {greatest}"

    name = counted(len(sockets), "socket")
    sizes = [len(socket.cores) for socket in sockets]
    nodes = [len(socket.nodes) for socket in sockets]
    cores = f"{span(sizes)} core{'s' if max(sizes) > 1 else ''}"
    in_nodes = f" and {span(nodes)} NUMA nodes" if max(nodes) > 1 else ""
    return f"{name} of {cores}{in_nodes}"


PLACES = ("sys/devices/system/cpu", "devices/system/cpu", "system/cpu", "cpu")
"""The folder of CPUs in a copy of `/`, `/sys`, `/sys/devices` or `/sys/devices/system`."""


def read_sysfs(cpu_folder: Path) -> Speeds:
    """Return the online CPUs of `/sys/devices/system/cpu`, with nodes from `node` beside it."""
    nodes = {}  # of each CPU; empty where the kernel has no nodes
    for folder in sorted(cpu_folder.with_name("node").glob("node[0-9]*")):
        name = folder.name.removeprefix("node")
        if is_number(name):
            nodes.update(dict.fromkeys(read_cpus(folder / "cpulist"), int(name)))
    file = cpu_folder.parent.parent / "cpu_atom" / "cpus"  # Intel's efficiency cores
    atoms = read_cpus(file) if file.is_file() else None
    speeds, cores = Speeds(), dict[int, int]()
    for cpu in sorted(read_cpus(cpu_folder / "online")):
        folder = cpu_folder / f"cpu{cpu}"
        # As lscpu: the first set that has the CPU. Core ids are not used: they repeat from die to
        # die, on Arm from cluster to cluster, and hypervisors give two threads of a core two.
        siblings = read_cpus(folder / "topology" / "thread_siblings_list")
        siblings = siblings if cpu in siblings else frozenset({cpu})
        cores.update(dict.fromkeys(siblings - cores.keys(), min(siblings)))
        # An unknown package is -1, and counts as socket 0.
        socket = max(0, read_id(folder / "topology" / "physical_package_id"))
        place = Cpu(cpu, core=cores[cpu], socket=socket, node=nodes.get(cpu, 0))
        speeds[place] = read_speed(folder) if atoms is None else float(2 - (cpu in atoms))
    return speeds


SPEEDS = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")


def read_speed(folder: Path) -> float:
    """Return the speed of a CPU relative to others of its host; 0 where it is not known."""
    files = (folder / name for name in SPEEDS if (folder / name).is_file())
    return max(0, next(map(read_id, files), 0))


def read_cpus(file: Path) -> frozenset[int]:
    """Return the CPUs that a file of the kernel names."""
    text = read_sysfs_text(file)
    try:
        return parse_cpu_list(text)
    except ValueError as error:
        raise InputError(f"{file}: {error}") from error


def read_id(file: Path) -> int:
    """Return the number in a file, which is -1 where it is unknown to the kernel."""
    text = read_sysfs_text(file).strip()
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"{file}: expected a number, found {text!r}") from error


def read_sysfs_text(file: Path) -> str:
    """Return the text of a file."""
    with or_unreadable(file, advice="copy it too, or give lscpu's output"):
        return read_text(file, errors="replace")


COMMAND = "lscpu -p=CPU,CORE,SOCKET,NODE"
COLUMNS = ("cpu", "core", "socket", "node")
SPEED = "maxmhz"  # A column that may be missing
UNKNOWN = ("", "-")
MOST_BYTES = 10_000_000  # Of an output: a CPU has about 30


def read_lscpu(file: Path) -> Speeds:
    """Return the online CPUs of `lscpu -p` with the columns CPU, Core, Socket and Node."""
    advice = f"on the machine that it is to describe, write it by: {COMMAND} > {file.name}"
    try:
        with or_unreadable(file, advice=advice):
            lines = read_text(file, most_bytes=MOST_BYTES).splitlines()
    except UnicodeDecodeError as error:
        raise not_lscpu(str(file)) from error
    columns, seen, speeds = None, set[int](), Speeds()
    for number, line in enumerate(lines, start=1):
        place = f"{file}:{number}"
        if line.startswith("#"):
            names = [name.strip().lower() for name in line.lstrip("#").split(",")]
            if set(COLUMNS) <= set(names):
                columns = {name: names.index(name) for name in (*COLUMNS, SPEED) if name in names}
        elif line.strip():
            if columns is None:
                raise not_lscpu(place)
            for cpu, speed in parse_cpu_line(line, columns, place).items():
                if cpu.cpu in seen or len(seen) == MOST_NUMBERS:
                    problem = "is listed twice" if cpu.cpu in seen else "is one of too many"
                    raise InputError(f"{place}: CPU {cpu.cpu} {problem}; give one host's output")
                seen.add(cpu.cpu)
                speeds[cpu] = speed
    if not speeds:
        raise not_lscpu(str(file))
    return speeds


def not_lscpu(place: str) -> InputError:
    """Return the error of a file that is not the output of lscpu."""
    return InputError(f"{place}: expected the output of: {COMMAND}")


def parse_cpu_line(line: str, columns: Mapping[str, int], place: str) -> Speeds:
    """Return one CPU's line; none for a CPU that is offline, which has no core and socket."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) <= max(columns.values()):
        raise InputError(
            f"{place}: has {len(fields)} fields, fewer than its header; use: {COMMAND}"
        )
    values = {name: fields[column] for name, column in columns.items()}
    speed_text = values.pop(SPEED, "")
    speed = float(speed_text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", speed_text) else 0.0
    if values["core"] in UNKNOWN and values["socket"] in UNKNOWN:
        return {}
    if values["node"] in UNKNOWN:
        values["node"] = "0"
    for name, value in values.items():
        if not is_number(value):
            raise InputError(f"{place}: {name}: expected a number, found {value!r}; use: {COMMAND}")
    return {Cpu(*(int(values[name]) for name in COLUMNS)): speed}


MOST_NUMBERS = 8_192  # Linux can be built for no more CPUs


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers of a list such as `0-3,8`; an empty text is an empty set.

    Raises:
        ValueError: The text is not such a list.
    """
    if not text.strip():
        return frozenset()
    numbers: set[int] = set()
    count = 0
    for part in map(str.strip, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not (is_number(first) and (is_number(last) if dash else True)):
            raise ValueError(f"expected a list such as 0-3,8, found {part!r}")
        if dash and int(last) < int(first):
            raise ValueError(f"{part!r} ends before it begins")
        # A range needs no memory, so that the limit is checked before its numbers are stored.
        run = range(int(first), int(last if dash else first) + 1)
        count += len(run)
        if count > MOST_NUMBERS:
            raise ValueError(f"more than {MOST_NUMBERS:,} CPUs")
        numbers.update(run)
    return frozenset(numbers)


def is_number(text: str) -> bool:
    """Return whether a text is a CPU number: a few digits."""
    # `isdigit` alone accepts `²`, which `int` refuses, and the digits of other scripts.
    return text.isascii() and text.isdigit() and len(text) <= 6


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Format numbers as a kernel list, such as `0-3,8`; an empty list is an empty text."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def format_ranks(numbers: Collection[int]) -> str:
    """Return `rank 3`, or `ranks 0-3`."""
    return f"rank{'s' if len(numbers) > 1 else ''} {format_cpu_list(numbers)}"


def join_numbers(numbers: Iterable[int], conjunction: str) -> str:
    """Return numbers as a list in words, such as `1, 2 or 4`."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} {conjunction} {last}" if others else last
