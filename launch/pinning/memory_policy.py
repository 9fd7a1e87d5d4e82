"""Memory near a rank's cores: the kernel's memory policy, set before the first large allocation.

https://man7.org/linux/man-pages/man2/set_mempolicy.2.html describes the call. It counts for the
calling thread, and for threads and processes that this one starts afterwards.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Collection

SYSTEM_CALLS = {"x86_64": 238, "aarch64": 237}
"""The number of set_mempolicy; the C library has no function for it."""

MPOL_PREFERRED = 1
MPOL_BIND = 2
MPOL_INTERLEAVE = 3
MPOL_LOCAL = 4
MPOL_PREFERRED_MANY = 5  # since Linux 5.15

BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def prefer_memory(nodes: Collection[int], *, allowed: Collection[int]) -> str | None:
    """Take memory from these NUMA nodes as long as they have any.

    Args:
        nodes: The nodes of the rank's cores.
        allowed: The nodes that this process may take memory from (`Mems_allowed`); where it is one
            alone there is nothing to choose.

    Returns:
        A sentence that says what was lost, where the policy could not be set; None if all is well.
    """
    if len(allowed) < 2:
        return None
    usable = sorted(set(nodes) & set(allowed))
    which = "memory node" + ("s " if len(nodes) > 1 else " ") + ", ".join(map(str, sorted(nodes)))
    if not usable:
        return f"{which}: not allowed here (Mems_allowed), so memory comes from other nodes, slower"
    failure = set_preferred(usable)
    if failure is None:
        return None
    lost = "each page lies near the core that first writes it, which may be another rank's"
    if failure == errno.EPERM:
        return (
            f"{which}: the memory policy is not permitted here, so {lost}; in a container, start "
            "it with --cap-add SYS_NICE, or a seccomp profile that permits set_mempolicy"
        )
    return f"{which}: the memory policy cannot be set ({os.strerror(failure)}), so {lost}"


def set_preferred(nodes: Collection[int]) -> int | None:
    """Prefer these nodes; return the kernel's error number, or None.

    Never MPOL_BIND, which also keeps memory on the nodes: there a full node, of page cache or of a
    neighbour, ends a night's run as out of memory, though the next node has room. Before Linux 5.15
    only one node can be preferred; to several, the kernel's own rule comes closest, which takes
    each page from the node of the core that first writes it.
    """
    if len(nodes) == 1:
        return set_policy(MPOL_PREFERRED, nodes)
    return set_policy(MPOL_PREFERRED_MANY, nodes)


def set_policy(mode: int, nodes: Collection[int]) -> int | None:
    """Make the system call; return its error number, or None. MPOL_LOCAL takes no nodes."""
    call = SYSTEM_CALLS.get(platform.machine())
    if call is None:
        return errno.ENOSYS
    words = (ctypes.c_ulong * (max(nodes, default=0) // BITS + 1))()
    for node in nodes:
        words[node // BITS] |= 1 << node % BITS
    library = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_ulong(len(words) * BITS + 1)  # the kernel takes one bit less than it is told
    if library.syscall(ctypes.c_long(call), ctypes.c_int(mode), words, size) == 0:
        return None
    return ctypes.get_errno()
