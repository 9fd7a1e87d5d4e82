"""A host's CPUs, with the core, socket and memory node of each.

It is read from `/sys/devices/system`, from a copy of that folder, or from the output of `lscpu -p`:
comment lines, then one line of numbers for each CPU. Placement sees a host as sockets of memory
nodes of physical cores. Sets of CPUs and memory nodes are written as the kernel does: `0-3,8`.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.files import read_text

SYSFS = Path("/sys/devices/system")


@dataclass(frozen=True, order=True)
class Cpu:
    """One hardware thread, as the kernel numbers it."""

    cpu: int  # The kernel's number, which pinning uses
    core: int  # Physical core, counted over the whole host in the order of its lowest CPU
    socket: int
    node: int  # NUMA node; 0 where the host has none


@dataclass(frozen=True)
class Topology:
    """The online CPUs of a host, or those of them that may be used, in order of number."""

    cpus: tuple[Cpu, ...]

    def restricted(self, allowed: Collection[int]) -> "Topology":
        """Return the same host with the allowed CPUs only; cores keep their numbers."""
        return Topology(tuple(cpu for cpu in self.cpus if cpu.cpu in allowed))


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
        facts = read_lscpu(path)
    else:
        folder = next((path / place for place in PLACES if (path / place).is_dir()), None)
        if folder is None:
            raise InputError(
                f"{path}: no {PLACES[1]} below it; give a copy of /sys, or lscpu's output"
            )
        facts = read_sysfs(folder)
    if not facts:
        raise InputError(f"{path}: no CPU is online there; give a copy of /sys, or lscpu's output")
    return make_topology(facts)


def read_this_machine(sysfs: Path = SYSFS) -> Topology:
    """Read the topology from sysfs; if it is hidden, every CPU is a core of one socket."""
    if any((sysfs / "cpu").glob("cpu[0-9]*/topology/core_id")):
        return make_topology(read_sysfs(sysfs / "cpu"))
    return Topology(
        tuple(Cpu(cpu, core=cpu, socket=0, node=0) for cpu in sorted(os.sched_getaffinity(0)))
    )


@dataclass(frozen=True, order=True)
class CpuFacts:
    """One online CPU, whose `core_id` names its core within the socket."""

    cpu: int
    core_id: tuple[int, ...]
    socket: int
    node: int


def make_topology(facts: Iterable[CpuFacts]) -> Topology:
    """Return the topology, with cores numbered: their ids may repeat from socket to socket."""
    cores: dict[tuple[int, ...], int] = {}
    cpus = []
    for item in sorted(facts):
        core = cores.setdefault((item.socket, *item.core_id), len(cores))
        cpus.append(Cpu(item.cpu, core=core, socket=item.socket, node=item.node))
    return Topology(tuple(cpus))


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

    @property
    def cores(self) -> tuple[Core, ...]:
        """All its cores, node by node."""
        return tuple(core for node in self.nodes for core in node.cores)


def list_sockets(topology: Topology) -> tuple[Socket, ...]:
    """Return the sockets that have CPUs, in order; a node may have CPUs on two of them."""
    tree: dict[int, dict[int, dict[int, list[int]]]] = {}
    for cpu in sorted(topology.cpus):
        nodes = tree.setdefault(cpu.socket, {})
        nodes.setdefault(cpu.node, {}).setdefault(cpu.core, []).append(cpu.cpu)
    sockets = []
    for number, nodes in sorted(tree.items()):
        cores = ((node, tuple(map(tuple, nodes[node].values()))) for node in sorted(nodes))
        sockets.append(Socket(number, tuple(Node(node, its_cores) for node, its_cores in cores)))
    return tuple(sockets)


def count_cores(sockets: Sequence[Socket]) -> int:
    """Return the number of physical cores of all sockets."""
    return sum(len(socket.cores) for socket in sockets)


def describe_sockets(sockets: Sequence[Socket]) -> str:
    """Describe sockets as `2 sockets of 28 cores`, or `2 sockets of 28 cores and 4 NUMA nodes`."""

    def span(counts: Sequence[int]) -> str:
        least, greatest = min(counts), max(counts)
        return f"{least}" if least == greatest else f"{least} to {greatest}"

    name = "1 socket" if len(sockets) == 1 else f"{len(sockets)} sockets"
    sizes = [len(socket.cores) for socket in sockets]
    nodes = [len(socket.nodes) for socket in sockets]
    cores = f"{span(sizes)} core{'s' if max(sizes) > 1 else ''}"
    in_nodes = f" and {span(nodes)} NUMA nodes" if max(nodes) > 1 else ""
    return f"{name} of {cores}{in_nodes}"


PLACES = ("sys/devices/system/cpu", "devices/system/cpu", "system/cpu", "cpu")
"""The folder of CPUs in a copy of `/`, `/sys`, `/sys/devices` or `/sys/devices/system`."""


def read_sysfs(cpu_folder: Path) -> list[CpuFacts]:
    """Return the online CPUs of `/sys/devices/system/cpu`, with nodes from `node` beside it."""
    nodes = {}  # of each CPU; empty where the kernel has no nodes
    for file in sorted(cpu_folder.with_name("node").glob("node[0-9]*/cpulist")):
        name = file.parent.name.removeprefix("node")
        if is_number(name):
            nodes.update(dict.fromkeys(read_list(file), int(name)))
    if (cpu_folder / "online").is_file():
        online = read_list(cpu_folder / "online")
    else:  # a copy without that list
        files = cpu_folder.glob("cpu[0-9]*/topology/core_id")
        names = (file.parts[-3].removeprefix("cpu") for file in files)
        online = frozenset(int(name) for name in names if is_number(name))
    facts = []
    for cpu in sorted(online):
        folder = cpu_folder / f"cpu{cpu}" / "topology"
        # Core ids may repeat from die to die. Core -1 is unknown: the CPU counts as a core.
        core = read_id(folder / "core_id")
        # Older kernels have no die_id.
        die = read_id(folder / "die_id") if (folder / "die_id").is_file() else 0
        # An unknown package is -1 too, and counts as socket 0.
        socket = max(0, read_id(folder / "physical_package_id"))
        core_id = (die, core if core >= 0 else cpu)
        facts.append(CpuFacts(cpu, core_id=core_id, socket=socket, node=nodes.get(cpu, 0)))
    return facts


def read_list(file: Path) -> frozenset[int]:
    """Return the CPUs that a file of the kernel lists."""
    try:
        return parse_cpu_list(read_sysfs_text(file))
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
    try:
        return read_text(file, errors="replace")
    except OSError as error:
        advice = "copy it too, or give lscpu's output"
        raise InputError(f"{file}: cannot be read: {error.strerror}; {advice}") from error


COMMAND = "lscpu -p=CPU,CORE,SOCKET,NODE"
COLUMNS = ("cpu", "core", "socket", "node")
UNKNOWN = ("", "-")
MOST_BYTES = 10_000_000  # Of an output: 65,536 CPUs have 2 MB


def read_lscpu(file: Path) -> list[CpuFacts]:
    """Return the online CPUs of `lscpu -p` with the columns CPU, Core, Socket and Node."""
    try:
        lines = read_text(file, most_bytes=MOST_BYTES).splitlines()
    except OSError as error:
        advice = f"on the machine that it is to describe, write it by: {COMMAND} > {file.name}"
        raise InputError(f"{file}: cannot be read: {error.strerror}; {advice}") from error
    except UnicodeDecodeError as error:
        raise not_lscpu(str(file)) from error
    columns = None
    by_number: dict[int, CpuFacts] = {}
    for number, line in enumerate(lines, start=1):
        place = f"{file}:{number}"
        if line.startswith("#"):
            names = [name.strip().lower() for name in line.lstrip("#").split(",")]
            if set(COLUMNS) <= set(names):
                columns = {name: names.index(name) for name in COLUMNS}
        elif line.strip():
            if columns is None:
                raise not_lscpu(place)
            facts = parse_cpu_line(line, columns, place)
            if facts and facts.cpu in by_number:
                raise InputError(
                    f"{place}: CPU {facts.cpu} is listed twice; give one host's output"
                )
            if facts:
                by_number[facts.cpu] = facts
    if not by_number:
        raise not_lscpu(str(file))
    return list(by_number.values())


def not_lscpu(place: str) -> InputError:
    """Return the error of a file that is not the output of lscpu."""
    return InputError(f"{place}: expected the output of: {COMMAND}")


def parse_cpu_line(line: str, columns: Mapping[str, int], place: str) -> CpuFacts | None:
    """Return one CPU's line; None for a CPU that is offline, which has no core and socket."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) <= max(columns.values()):
        raise InputError(
            f"{place}: has {len(fields)} fields, fewer than its header; use: {COMMAND}"
        )
    values = {name: fields[column] for name, column in columns.items()}
    if values["core"] in UNKNOWN and values["socket"] in UNKNOWN:
        return None
    if values["node"] in UNKNOWN:
        values["node"] = "0"
    for name, value in values.items():
        if not is_number(value):
            raise InputError(f"{place}: {name}: expected a number, found {value!r}; use: {COMMAND}")
    cpu, core, socket, node = (int(values[name]) for name in COLUMNS)
    return CpuFacts(cpu, core_id=(core,), socket=socket, node=node)


MOST_NUMBERS = 65_536


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
