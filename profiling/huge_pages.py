"""Transparent huge pages for what the C library allocates."""

import os
import re
from pathlib import Path

from launch.host.proc_files import read_text

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLE = "glibc.malloc.hugetlb=1"
"""Advises the kernel to back the heap by huge pages; glibc has it since 2.35.
https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html"""
OLDEST_GLIBC = (2, 35)


def huge_pages_environment() -> dict[str, str]:
    """Variables of a process that shall ask for huge pages; what the user has set is kept."""
    others = os.environ.get("GLIBC_TUNABLES", "")
    return {"GLIBC_TUNABLES": f"{others}:{TUNABLE}" if others else TUNABLE}


def huge_pages_remark(enabled: Path = ENABLED, *, glibc: str | None = None) -> str:
    """A sentence where asking has no effect on this machine; empty where it may have one.

    Args:
        enabled: The kernel's file.
        glibc: The C library as `os.confstr` names it; None asks it.
    """
    chosen = re.search(r"\[(\w+)\]", read_text(enabled))
    if chosen is None:
        return f"--huge-pages: no effect, as this kernel has no transparent huge pages ({enabled})"
    if chosen[1] == "never":
        return f"--huge-pages: no effect, as the kernel gives none: {enabled} says never"
    if chosen[1] == "always":
        return f"--huge-pages: no effect, as the kernel gives them unasked: {enabled} says always"
    name = glibc if glibc is not None else os.confstr("CS_GNU_LIBC_VERSION") or "no glibc"
    version = re.fullmatch(r"glibc (\d+)\.(\d+).*", name)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_GLIBC:
        return f"--huge-pages: no effect, as it takes glibc 2.35 or newer, and this is {name}"
    return ""


def huge_pages_mb(rollup: Path = Path("/proc/self/smaps_rollup")) -> float:
    """Memory of this process that lies in huge pages now. [10⁶ bytes]"""
    for line in read_text(rollup).splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
