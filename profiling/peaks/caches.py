"""How much memory must be moved so that no cache holds it."""

from pathlib import Path

from launch.host.cpu_lists import parse_cpu_list
from launch.host.proc_files import read_text
from profiling.bench.available_memory import available_mb

TIMES_THE_CACHES = 4
LARGEST_SHARE = 1 / 8
"""Of the memory that is free: there are two buffers, and other programs."""


def memory_buffer_bytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Several times all last-level caches together, if there is memory for it."""
    wanted = TIMES_THE_CACHES * last_level_bytes(cpus)
    return min(wanted, round(available_mb() * 1e6 * LARGEST_SHARE))


def last_level_bytes(cpus: Path) -> int:
    """Of all caches that no larger one stands behind; 0 where the kernel hides them."""
    caches: dict[frozenset[int], tuple[int, int]] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = read_text(folder / "level").strip(), read_text(folder / "size").strip()
        sharers = parse_cpu_list(read_text(folder / "shared_cpu_list"))
        if level.isdigit() and size.endswith("K") and size[:-1].isdigit():
            caches[sharers] = max(caches.get(sharers, (0, 0)), (int(level), int(size[:-1]) * 1024))
    last = max((level for level, _ in caches.values()), default=0)
    return sum(size for level, size in caches.values() if level == last)
