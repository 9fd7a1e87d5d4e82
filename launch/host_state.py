"""The state of a host: settings of kernel and processor, memory and load that may slow training.

It is read, never changed. In containers and virtual machines its files may be missing or of another
form; what cannot be read is unknown, and left out. https://docs.kernel.org/admin-guide/ describes
them: pm/cpufreq.html and pm/intel_pstate.html, sysctl/kernel.html (NUMA balancing), sysctl/vm.html
(swappiness), mm/transhuge.html (huge pages).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from common.machine import KIB, read_proc_text, read_status
from launch.topology import is_number, parse_cpu_list

ROOT = Path("/")
CPU = "sys/devices/system/cpu"
WORD = re.compile(r"[A-Za-z][\w-]{0,39}", re.ASCII)
NUMBER = re.compile(r"[0-9]{1,15}")
LOAD = re.compile(r"([0-9]{1,9}\.[0-9]{1,3}) \S+ \S+ ([0-9]{1,15})/[0-9]+ [0-9]+")
"""https://man7.org/linux/man-pages/man5/proc_loadavg.5.html: `0.20 0.18 0.12 1/80 11206`"""
NODE_SIZE = re.compile(r"^Node \S+ (\S+): +([0-9]{1,15}) kB$", re.MULTILINE)
ACTIVE = re.compile(r"\[([a-z+_-]{1,40})\]")  # The kernel marks the active mode by brackets
NUMA_BALANCING = {"0": "off", "1": "on", "2": "between tiers", "3": "on, also between tiers"}
HYPERTHREADS = {"0": "off", "1": "on"}
TURBO = {
    # In passive mode intel_pstate calls itself intel_cpufreq, and has the same file.
    "intel_pstate/no_turbo": {"1": "off", "0": "on"},
    "cpufreq/boost": {"0": "off", "1": "on"},  # Of other drivers
}
"""The file of turbo, and what its values mean."""


@dataclass(frozen=True)
class NodeMemory:
    """Memory of a NUMA node. [bytes]"""

    node: int
    size: int
    available: int  # Free, or held by copies of files that the kernel can drop


@dataclass(frozen=True, kw_only=True)
class HostState:
    """What was read on a host; unknown values are empty or None.

    Fields with a label are settings, which should be equal on the hosts of a job.
    """

    frequency_driver: str = field(default="", metadata={"label": "frequency driver"})
    governor: str = field(default="", metadata={"label": "frequency governor"})
    """Those of all CPUs, joined by commas where they differ."""
    energy_preference: str = field(default="", metadata={"label": "energy preference"})
    turbo: str = field(default="", metadata={"label": "turbo"})
    turbo_file: str = ""  # The one that was read, below /sys/devices/system/cpu
    hyperthreads: str = field(default="", metadata={"label": "hyperthreads"})
    memory_speed: str = field(default="", metadata={"label": "memory"})
    numa_balancing: str = field(default="", metadata={"label": "NUMA balancing"})
    huge_pages: str = field(default="", metadata={"label": "huge pages"})
    swappiness: str = field(default="", metadata={"label": "swappiness"})
    memory: int | None = None  # [bytes], like both below
    swap: int | None = None
    swap_used: int | None = None
    nodes: tuple[NodeMemory, ...] = ()
    cores: int | None = None  # Physical ones, of the whole host
    load: float | None = None  # Threads that ran or waited for a core, mean of a minute
    running: int | None = None  # Threads that do so now

    def settings(self) -> dict[str, str]:
        """Return the known settings by label."""
        labels = {item.metadata["label"]: item.name for item in fields(self) if item.metadata}
        values = {label: getattr(self, name) for label, name in labels.items()}
        return {label: value for label, value in values.items() if value}

    def capacities(self) -> dict[str, str]:
        """Return what the host has, as far as it is known, by label; sizes are rounded."""
        values = {
            "number of cores": str(self.cores) if self.cores else "",
            "memory size": format_modules(self.memory) if self.memory else "",
            "swap": "" if self.swap is None else "on" if self.swap else "none",
        }
        return {label: value for label, value in values.items() if value}

    def to_dict(self) -> dict[str, Any]:
        """Return the known values for `environment.json`; sizes are in bytes."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["nodes"] = [vars(node) for node in self.nodes]
        return {name: value for name, value in values.items() if value not in ("", None, [])}


def read_host_state(root: Path = ROOT) -> HostState:
    """Return the state of this host, or of a copy of its files, in milliseconds."""
    cpu = root / CPU
    policies = sorted((cpu / "cpufreq").glob("policy[0-9]*"))
    turbo = {name: value for name in TURBO if (value := named(cpu / name, TURBO[name]))}
    turbo_file = next(iter(turbo), "")
    memory, swap, swap_free = read_sizes(root / "proc/meminfo", "MemTotal", "SwapTotal", "SwapFree")
    used = None if swap is None or swap_free is None else max(0, swap - swap_free)
    huge_pages = ACTIVE.search(read_proc_text(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    load = LOAD.fullmatch(read_proc_text(root / "proc/loadavg").strip())
    swappiness = read_proc_text(root / "proc/sys/vm/swappiness").strip()
    return HostState(
        frequency_driver=", ".join(distinct(policies[:1], "scaling_driver")),
        governor=", ".join(distinct(policies, "scaling_governor")),
        energy_preference=", ".join(distinct(policies, "energy_performance_preference")),
        turbo=turbo.get(turbo_file, ""),
        turbo_file=turbo_file,
        hyperthreads=named(cpu / "smt/active", HYPERTHREADS),
        memory_speed=read_memory_speed(root),
        numa_balancing=named(root / "proc/sys/kernel/numa_balancing", NUMA_BALANCING),
        huge_pages=huge_pages[1] if huge_pages else "",
        swappiness=swappiness if NUMBER.fullmatch(swappiness) else "",
        memory=memory,
        swap=swap,
        swap_used=used,
        nodes=tuple(read_nodes(root / "sys/devices/system/node")),
        cores=count_physical_cores(cpu),
        load=float(load[1]) if load else None,
        running=int(load[2]) if load else None,
    )


def format_modules(size: int) -> str:
    """Return the memory that modules probably have, such as `512 GiB` where Linux has 503 GiB.

    Firmware and kernel keep some, and not the same on all hosts. So the size is rounded up to one
    of eight steps between two powers of 2, which the sizes of sets of modules are.
    """
    step = 2 ** max(0, size.bit_length() - 4)
    modules = -(-size // step) * step
    return f"{modules / KIB**3:g} GiB"


def named(file: Path, names: dict[str, str]) -> str:
    """Return the name of a file's value; empty for any other content."""
    return names.get(read_proc_text(file).strip(), "")


def distinct(policies: list[Path], name: str) -> list[str]:
    """Return the values that a file has in the folders, each once, sorted."""
    values = {read_proc_text(policy / name).strip() for policy in policies}
    # An energy preference may also be a number, from 0 for speed to 255 for saving.
    return sorted(value for value in values if WORD.fullmatch(value) or NUMBER.fullmatch(value))


def read_sizes(file: Path, *names: str) -> list[int | None]:
    """Return sizes of /proc/meminfo [bytes]; None for those that it does not have."""
    status = read_status(file)
    numbers = [status.get(name, "").partition(" ")[0] for name in names]
    return [int(number) * KIB if NUMBER.fullmatch(number) else None for number in numbers]


def read_nodes(folder: Path) -> Iterator[NodeMemory]:
    """Yield the memory of each node that has some, in order of number."""
    names = [path.name.removeprefix("node") for path in folder.glob("node[0-9]*")]
    for node in sorted(int(name) for name in names if is_number(name)):
        found = NODE_SIZE.findall(read_proc_text(folder / f"node{node}/meminfo"))
        sizes = {name: int(number) * KIB for name, number in found}
        if sizes.get("MemTotal") and "MemFree" in sizes:
            droppable = ("Active(file)", "Inactive(file)", "SReclaimable")
            available = sizes["MemFree"] + sum(sizes.get(name, 0) for name in droppable)
            yield NodeMemory(node, sizes["MemTotal"], min(available, sizes["MemTotal"]))


def count_physical_cores(cpu: Path) -> int | None:
    """Return the host's cores that are online, if all have as many hyperthreads as the first."""
    # Two files instead of one for each CPU; nothing is placed by this number.
    try:
        online = len(parse_cpu_list(read_proc_text(cpu / "online")))
        siblings = len(parse_cpu_list(read_proc_text(cpu / "cpu0/topology/thread_siblings_list")))
    except ValueError:
        return None
    return max(1, online // max(1, siblings)) if online else None


def read_memory_speed(root: Path) -> str:
    """Return the speed of the memory modules, such as `4800 MT/s (rated 5600)`; root may read it.

    Of modules that differ, the slowest.
    """
    speeds = []
    for file in sorted((root / "sys/firmware/dmi/entries").glob("17-*/raw")):
        try:
            entry = file.read_bytes()
        except OSError:
            return ""
        # SMBIOS (DMTF DSP0134) 2.7: size at 0x0C (0: an empty slot), speeds at 0x15 and 0x20.
        # 0 is unknown, and 0xFFFF stands for a longer field, of memory that is not built yet.
        if len(entry) < 0x22 or entry[0] != 17 or not any(entry[0x0C:0x0E]):
            continue
        configured, rated = (
            int.from_bytes(entry[offset : offset + 2], "little") for offset in (0x20, 0x15)
        )
        if 0 < configured < 0xFFFF:
            speeds.append((configured, rated if rated < 0xFFFF else 0))
    if not speeds:
        return ""
    configured, rated = min(speeds)
    return f"{configured} MT/s" + (f" (rated {rated})" if rated > configured else "")
