"""Where a process takes its memory from: the policies of numactl, set by the process itself."""

import os
from collections.abc import Collection
from typing import NamedTuple

from launch.host.cpu_lists import format_cpu_list, parse_cpu_list
from launch.pinning.memory_policy import (
    MPOL_BIND,
    MPOL_INTERLEAVE,
    MPOL_LOCAL,
    MPOL_PREFERRED,
    set_policy,
)
from retinanet.errors import InputError

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
