"""Where a process takes its memory from: the policies of numactl, set by the process itself.

TODO-DOC Transparent huge pages for what the C library allocates.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from common.errors import InputError
from common.process_facts import read_proc_text
from launch.environment import MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL, MPOL_PREFERRED, set_policy
from launch.topology import format_cpu_list, parse_cpu_list

CHOICES = "local, interleave, interleave=NODES, membind=NODES or preferred=NODE"
MODES = {
    "local": MPOL_LOCAL,
    "interleave": MPOL_INTERLEAVE,
    "membind": MPOL_BIND,
    "preferred": MPOL_PREFERRED,
}


class MemoryChoice(NamedTuple):
    """A policy of set_mempolicy(2)."""

    mode: int
    nodes: frozenset[int]


def parse_memory(text: str, *, allowed: Collection[int]) -> MemoryChoice:
    """Read `local`, `interleave`, `interleave=0,1`, `membind=0` or `preferred=1`.

    Args:
        text: The choice.
        allowed: NUMA nodes that this process may take memory from; `interleave` takes all.

    Raises:
        InputError: It is none of these, or a node may not be used.
    """
    name, equals, listed = text.partition("=")
    takes_nodes = {"local": (False,), "interleave": (False, True)}.get(name, (True,))
    if name not in MODES or bool(equals) not in takes_nodes:
        raise InputError(f"--memory: expected {CHOICES}, found {text!r}")
    try:
        nodes = parse_cpu_list(listed)
    except ValueError as error:
        raise InputError(f"--memory: {text}: {error}") from error
    if equals and not nodes:
        raise InputError(f"--memory: {text}: no node is named; expected {CHOICES}")
    if name == "preferred" and len(nodes) != 1:
        raise InputError(f"--memory: {text}: preferred takes one node")
    missing = nodes - set(allowed)
    if missing:
        raise InputError(
            f"--memory: {text}: memory node {format_cpu_list(missing)} is not among those that "
            f"this process may use, {format_cpu_list(allowed)}"
        )
    if name == "interleave" and not nodes:
        nodes = frozenset(allowed)
    return MemoryChoice(MODES[name], nodes)


def apply_memory(text: str, *, allowed: Collection[int]) -> None:
    """Set the policy for this process; call it before the first large allocation.

    Raises:
        InputError: The kernel does not permit it.
    """
    choice = parse_memory(text, allowed=allowed)
    failure = set_policy(choice.mode, choice.nodes)
    if failure is not None:
        raise InputError(
            f"--memory: {text}: the kernel refuses the memory policy ({os.strerror(failure)}); in "
            "a container, start it with --cap-add SYS_NICE, or leave --memory out"
        )


def memory_remark(text: str, *, allowed: Collection[int]) -> str:
    """A sentence where the choice has no effect on this machine; empty where it may have one."""
    if len(allowed) > 1:
        return ""
    node = f"node {format_cpu_list(allowed)}" if allowed else "node"
    return f"--memory {text}: no effect, as memory has one {node} here"


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
    chosen = re.search(r"\[(\w+)\]", read_proc_text(enabled))
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
    for line in read_proc_text(rollup).splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
