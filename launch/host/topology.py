"""What a host is made of: its CPUs, and the core, socket and memory node of each."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from launch.host.cpu_facts import CpuFacts
from launch.host.lscpu import read_lscpu
from launch.host.sysfs import find_cpu_folder, has_topology, read_sysfs
from retinanet.errors import InputError

SYSFS = Path("/sys/devices/system")


@dataclass(frozen=True, order=True)
class Cpu:
    """One hardware thread, as the kernel numbers it."""

    cpu: int
    """The kernel's number, which pinning uses."""
    core: int
    """Physical core, counted over the whole host in the order of its lowest CPU."""
    socket: int
    node: int
    """NUMA node; 0 where the host has none."""


@dataclass(frozen=True)
class Topology:
    """The online CPUs of a host, or those of them that may be used, in order of number."""

    cpus: tuple[Cpu, ...]

    def restricted(self, allowed: Collection[int]) -> "Topology":
        """The same host with the allowed CPUs only; cores keep their numbers."""
        return Topology(tuple(cpu for cpu in self.cpus if cpu.cpu in allowed))


def read_topology(path: Path | None = None) -> Topology:
    """The topology of this machine, or of one that a file or folder describes.

    Args:
        path: None for this machine; a file with the output of `lscpu -p=CPU,CORE,SOCKET,NODE`; or
            a folder with a copy of `/sys/devices/system` (or of `/sys`, or of its `devices`).

    Raises:
        InputError: The description is missing or cannot be understood; names file and line.
    """
    if path is None:
        return read_this_machine()
    facts = read_sysfs(find_cpu_folder(path)) if path.is_dir() else read_lscpu(path)
    if not facts:
        raise InputError(f"{path}: no CPU is online there; give a copy of /sys, or lscpu's output")
    return topology_of(facts)


def read_this_machine(sysfs: Path = SYSFS) -> Topology:
    """From sysfs; where a sandbox hides it, every CPU counts as a core of one socket."""
    if has_topology(sysfs / "cpu"):
        return topology_of(read_sysfs(sysfs / "cpu"))
    return Topology(
        tuple(Cpu(cpu, core=cpu, socket=0, node=0) for cpu in sorted(os.sched_getaffinity(0)))
    )


def topology_of(facts: Iterable[CpuFacts]) -> Topology:
    """Number the cores: their own ids may repeat from socket to socket."""
    cores: dict[tuple[int, ...], int] = {}
    cpus = []
    for one in sorted(facts):
        core = cores.setdefault((one.socket, *one.core_id), len(cores))
        cpus.append(Cpu(one.cpu, core=core, socket=one.socket, node=one.node))
    return Topology(tuple(cpus))
