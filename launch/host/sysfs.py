"""A host as the kernel describes it below `/sys/devices/system`, or in a copy of that folder."""

from pathlib import Path

from launch.host.cpu_facts import CpuFacts
from launch.host.cpu_lists import is_number, parse_cpu_list
from retinanet.errors import InputError
from retinanet.regular_files import read_text as read_regular

PLACES = ("sys/devices/system/cpu", "devices/system/cpu", "system/cpu", "cpu")
"""Where a copy may have the folder of CPUs, by what was copied."""


def find_cpu_folder(copy: Path) -> Path:
    """The folder of CPUs in a copy of sysfs; that of memory nodes lies beside it.

    Raises:
        InputError: The copy has none.
    """
    for place in PLACES:
        if (copy / place).is_dir():
            return copy / place
    raise InputError(f"{copy}: no {PLACES[1]} below it; give a copy of /sys, or lscpu's output")


def has_topology(cpu_folder: Path) -> bool:
    """Whether the kernel tells of cores here; a sandbox may hide them."""
    return any(cpu_folder.glob("cpu[0-9]*/topology/core_id"))


def read_sysfs(cpu_folder: Path) -> list[CpuFacts]:
    """The online CPUs of `/sys/devices/system/cpu`, with memory nodes from `node` beside it.

    Raises:
        InputError: A file is missing or holds something else; names it.
    """
    nodes = read_nodes(cpu_folder.with_name("node"))
    return [
        CpuFacts(
            cpu,
            core_id=read_core_id(cpu_folder / f"cpu{cpu}" / "topology", cpu),
            socket=max(0, read_id(cpu_folder / f"cpu{cpu}" / "topology" / "physical_package_id")),
            node=nodes.get(cpu, 0),
        )
        for cpu in sorted(online(cpu_folder))
    ]


def online(cpu_folder: Path) -> frozenset[int]:
    """CPUs that are switched on; a copy without that list counts those that have a topology."""
    if (cpu_folder / "online").is_file():
        return read_list(cpu_folder / "online")
    found = cpu_folder.glob("cpu[0-9]*/topology/core_id")
    names = (file.parts[-3].removeprefix("cpu") for file in found)
    return frozenset(int(name) for name in names if is_number(name))


def read_core_id(topology: Path, cpu: int) -> tuple[int, int]:
    """The core within its socket: core ids may repeat from die to die.

    Where the kernel does not know the core, the CPU counts as one.
    """
    die = topology / "die_id"
    core = read_id(topology / "core_id")
    return (read_id(die) if die.is_file() else 0, core if core >= 0 else cpu)


def read_nodes(node_folder: Path) -> dict[int, int]:
    """The memory node of each CPU; nothing where the kernel knows no nodes."""
    files = sorted(node_folder.glob("node[0-9]*/cpulist"))
    names = ((file, file.parent.name.removeprefix("node")) for file in files)
    return {cpu: int(name) for file, name in names if is_number(name) for cpu in read_list(file)}


def read_list(file: Path) -> frozenset[int]:
    """The CPUs that a file of the kernel lists."""
    try:
        return parse_cpu_list(read_text(file))
    except ValueError as error:
        raise InputError(f"{file}: {error}") from error


def read_id(file: Path) -> int:
    """A number; -1 where the kernel does not know."""
    text = read_text(file).strip()
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"{file}: expected a number, found {text!r}") from error


def read_text(file: Path) -> str:
    """The file's text."""
    try:
        return read_regular(file, errors="replace")
    except OSError as error:
        advice = "copy it too, or give lscpu's output"
        raise InputError(f"{file}: cannot be read: {error.strerror}; {advice}") from error
