"""Files of /sys and /proc of several machines, as far as `read_host_state` reads them."""

from pathlib import Path

CPU = "sys/devices/system/cpu"
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
MODES = "always madvise never"
GB = 10**9


def write_host(root: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below `root`, which is returned; texts end with a line break as the kernel's."""
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
    return root


def memory(*, size: int, swap: int = 0, swap_used: int = 0) -> dict[str, str | bytes]:
    """Return /proc/meminfo. [GB]"""
    sizes = {"MemTotal": size, "SwapTotal": swap, "SwapFree": swap - swap_used}
    return {"proc/meminfo": "\n".join(f"{name}: {kib(gb)} kB" for name, gb in sizes.items())}


def node(number: int, *, size: int, free: int, cached: int = 0) -> dict[str, str | bytes]:
    """Return the memory of a node. [GB]"""
    sizes = {"MemTotal": size, "MemFree": free, "Inactive(file)": cached}
    lines = [f"Node {number} {name}:  {kib(gb)} kB" for name, gb in sizes.items()]
    return {f"sys/devices/system/node/node{number}/meminfo": "\n".join(lines)}


def kib(gigabytes: int) -> int:
    """Return a size as the kernel writes it."""
    return gigabytes * GB // 1024


def frequency(
    *, driver: str, governor: str, preference: str = "", cpus: int = 8
) -> dict[str, str | bytes]:
    """Return the files of each CPU's frequency."""
    files: dict[str, str | bytes] = {}
    for cpu in range(cpus):
        folder = f"{CPU}/cpufreq/policy{cpu}"
        files |= {f"{folder}/scaling_driver": driver, f"{folder}/scaling_governor": governor}
        if preference:
            files[f"{folder}/energy_performance_preference"] = preference
    return files


def cores(
    online: str, siblings: str, *, load: str = "0.20 0.18 0.12 1/800 11206"
) -> dict[str, str | bytes]:
    """Return the online CPUs, those of the first core, and the load."""
    return {
        f"{CPU}/online": online,
        f"{CPU}/cpu0/topology/thread_siblings_list": siblings,
        "proc/loadavg": load,
    }


def memory_module(*, rated: int, configured: int) -> bytes:
    """Return an SMBIOS structure of type 17, with speeds in MT/s."""
    entry = bytearray(0x28)
    entry[0], entry[1], entry[0x0C] = 17, 0x28, 1
    entry[0x15:0x17] = rated.to_bytes(2, "little")
    entry[0x20:0x22] = configured.to_bytes(2, "little")
    return bytes(entry)


def tuned_xeon(root: Path, **changes: str) -> Path:
    """Write two sockets of 8 cores with hyperthreads, tuned for training."""
    files: dict[str, str | bytes] = {
        **cores("0-31", "0,16"),
        **frequency(
            driver="intel_pstate", governor="performance", preference="performance", cpus=32
        ),
        f"{CPU}/intel_pstate/no_turbo": "0",
        f"{CPU}/smt/active": "1",
        "proc/sys/kernel/numa_balancing": "0",
        "proc/sys/vm/swappiness": "1",
        HUGE_PAGES: "always [madvise] never",
        **memory(size=512),
        **node(0, size=256, free=40, cached=200),
        **node(1, size=256, free=250),
        "sys/firmware/dmi/entries/17-0/raw": memory_module(rated=5600, configured=4800),
        "sys/firmware/dmi/entries/17-1/raw": bytes(0x28),
    }
    return write_host(root, {**files, **changes})


def laptop(root: Path) -> Path:
    """Write a laptop that saves energy, and whose memory is too small for what runs on it."""
    files = {
        **cores("0-7", "0-1", load="0.30 0.30 0.30 2/900 4000"),
        **frequency(driver="intel_pstate", governor="powersave", preference="balance_power"),
        f"{CPU}/intel_pstate/no_turbo": "1",
        f"{CPU}/smt/active": "1",
        "proc/sys/kernel/numa_balancing": "1",
        "proc/sys/vm/swappiness": "60",
        HUGE_PAGES: "always madvise [never]",
        **memory(size=16, swap=8, swap_used=3),
        **node(0, size=16, free=4),
    }
    return write_host(root, files)


def epyc_vm(root: Path) -> Path:
    """Write a virtual machine, which hides its frequency; it has half of a core's threads."""
    files = {
        **cores("0-7", "0"),
        f"{CPU}/smt/active": "0",
        "proc/sys/kernel/numa_balancing": "0",
        "proc/sys/vm/swappiness": "60",
        HUGE_PAGES: "[always] madvise never",
        **memory(size=64),
        **node(0, size=64, free=60),
    }
    return write_host(root, files)


def full_node(root: Path) -> Path:
    """Write two nodes, one of which is full, with other programs on most cores."""
    files = {
        **cores("0-15", "0", load="14.10 12.00 9.00 13/800 11206"),
        "proc/sys/kernel/numa_balancing": "1",
        **memory(size=128),
        **node(0, size=64, free=60),
        **node(1, size=64, free=1, cached=1),
    }
    return write_host(root, files)
