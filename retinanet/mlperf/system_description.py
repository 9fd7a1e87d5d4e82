"""A submission's description of the system, filled from this machine as far as it tells."""

import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.host.proc_files import read_status, read_text
from launch.host.sockets import count_cores, sockets_of
from launch.host.topology import Topology, read_topology
from retinanet.processor import cpu_field, processor_name

CPU_0 = Path("/sys/devices/system/cpu/cpu0")
MEMORY = Path("/proc/meminfo")

AVAILABILITY = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "research": "Research, Development, or Internal (RDI)",
    "preview": "Preview",
}
"""`mlperf.status` in the words of the description."""

TOLD_BY_NOBODY = (
    "host_processor_interconnect",
    "host_storage_type",
    "host_networking",
    "host_networking_topology",
    "host_memory_configuration",
    "cooling",
    "hw_notes",
    "sw_notes",
)
"""Fields that are left empty, for somebody to fill in."""

OF_ACCELERATORS = (
    "accelerator_model_name",
    "accelerator_host_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
)


def system_description(
    *,
    submitter: str,
    system_name: str,
    division: str,
    status: str,
    environment: Mapping[str, Any],
    storage: Path,
) -> dict[str, str]:
    """All fields that MLCommons' system description checker asks for; what is not known is empty.

    Args:
        submitter: Who submits.
        system_name: What the system is called.
        division: `open` or `closed`.
        status: See `AVAILABILITY`.
        environment: A run's `environment.json`.
        storage: A folder on the disk that it used.
    """
    hosts = environment.get("ranks", {}).get("hosts", [])
    packages = environment.get("packages", {})
    return {
        "submitter": submitter,
        "division": division,
        "status": AVAILABILITY[status],
        "system_name": system_name,
        "number_of_nodes": str(max(1, len(set(hosts)))),
        **host_facts(read_topology()),
        "host_storage_capacity": f"{shutil.disk_usage(storage).total / 1e9:.0f} GB",
        "accelerators_per_node": "0",
        **dict.fromkeys(OF_ACCELERATORS, "none"),
        "framework": f"PyTorch {packages.get('torch', '')}",
        "other_software_stack": ", ".join(
            [f"Python {environment.get('python', '')}"]
            + [f"{name} {version}" for name, version in packages.items() if name != "torch"]
        ),
        "operating_system": operating_system(),
        **dict.fromkeys(TOLD_BY_NOBODY, ""),
    }


def host_facts(topology: Topology) -> dict[str, str]:
    """Processors and memory of a host."""
    sockets = sockets_of(topology)
    threads = len(topology.cpus) // len(sockets)
    return {
        "host_processors_per_node": str(len(sockets)),
        "host_processor_model_name": processor_name(),
        "host_processor_core_count": str(count_cores(sockets) // len(sockets)),
        "host_processor_vcpu_count": str(threads),
        "host_processor_frequency": frequency(),
        "host_processor_caches": caches(),
        "host_memory_capacity": memory(),
    }


def frequency() -> str:
    """The highest, or where a virtual machine hides it, the one that Linux measured."""
    highest = read_text(CPU_0 / "cpufreq" / "cpuinfo_max_freq").strip()
    if highest:
        return f"{int(highest) / 1e6:.2f} GHz"
    measured = cpu_field(("cpu MHz",))
    return f"{float(measured) / 1000:.2f} GHz" if measured else ""


def caches() -> str:
    """Of one core, as sysfs has them: `L1 Data 32K, L1 Instruction 32K, L2 Unified 1024K`."""
    found = []
    for folder in sorted((CPU_0 / "cache").glob("index*")):
        level, kind, size = (read_text(folder / name).strip() for name in ("level", "type", "size"))
        found.append(f"L{level} {kind} {size}")
    return ", ".join(found)


def memory() -> str:
    """All of the host's."""
    kilobytes = read_status(MEMORY).get("MemTotal", "").partition(" ")[0]
    return f"{int(kilobytes) * 1024 / 1e9:.0f} GB" if kilobytes else ""


def operating_system() -> str:
    """Distribution and kernel."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return ", ".join(part for part in (name, f"Linux {platform.release()}") if part)
