"""The memory that a process may still take: the host's, and what its control groups leave.

https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files and
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html describe the groups' files.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from launch.host.cgroups import group_and_ancestors
from launch.host.proc_files import read_status, read_text

PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
NO_LIMIT = 1 << 60
"""Version 1 writes a number about as large as this for none. [bytes]"""


@dataclass(frozen=True, kw_only=True)
class MemoryLeft:
    """What can still be taken, and who sets that limit."""

    size: int
    """[bytes]"""
    of: str
    """Such as `this host`, or the control group's folder and limit."""
    swap: int = 0
    """What may go to the disk beyond that, slowly. [bytes]"""


def memory_left(
    *, process: Path = PROCESS, cgroups: Path = CGROUPS, meminfo: Path = MEMINFO
) -> MemoryLeft | None:
    """The least of the host's available memory and of what each control group leaves.

    Args:
        process: The process's folder in /proc.
        cgroups: Where control groups are mounted.
        meminfo: The kernel's account of the host's memory.

    Returns:
        None where the kernel does not say.
    """
    left = [
        one
        for mount, path in memory_groups(read_text(process / "cgroup"), cgroups)
        for folder in group_and_ancestors(mount, path)
        if (one := left_in(folder)) is not None
    ]
    host = {name: value.split()[:1] for name, value in read_status(meminfo).items()}
    available, swap = host.get("MemAvailable"), host.get("SwapFree", ["0"])
    if available:
        left.append(MemoryLeft(size=int(available[0]) * 1024, of="this host"))
    least = min(left, key=lambda one: one.size, default=None)
    return replace(least, swap=int(swap[0]) * 1024) if least else None


def memory_groups(membership: str, cgroups: Path) -> list[tuple[Path, str]]:
    """Mount and path of each group that may limit memory; see `launch.host.cgroups`."""
    found = []
    for line in membership.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            found += [(cgroups, path), (cgroups / "unified", path)]
        elif "memory" in controllers.split(","):
            found.append((cgroups / "memory", path))
    return found


def left_in(group: Path) -> MemoryLeft | None:
    """What a group leaves; None where it sets no limit.

    Pages of files that nobody has used lately count as the group's and are given back at need.
    """
    for limit, used, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = number_in(group / limit), number_in(group / used)
        if most is None or now is None or most >= NO_LIMIT:
            continue
        lines = (line.split() for line in read_text(group / "memory.stat").splitlines())
        given_back = next((int(words[1]) for words in lines if words[:1] == [idle]), 0)
        size = max(0, most - now + given_back)
        return MemoryLeft(size=size, of=f"the control group {group} (limit {most / 1e9:.1f} GB)")
    return None


def number_in(file: Path) -> int | None:
    """The one number in a file; None for `max`, or where there is none."""
    text = read_text(file).strip()
    return int(text) if text.isdigit() else None
