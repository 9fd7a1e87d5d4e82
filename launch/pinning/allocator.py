"""The allocator's policy, set before torch is loaded.

torch takes and gives back hundreds of large buffers in a training step. glibc asks the kernel for
each one and returns it, so that every step pays for fresh pages: more time than its arithmetic.
"""

import ctypes

from launch.pinning.preload import preload

# From glibc's malloc.h, which Python has no names for.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4

HEAP_GROWTH = 64 << 20
"""The heap grows by at least this much at a time. [bytes]"""


def set_allocator(policy: str) -> None:
    """Set the memory policy of this process; call it first of all, before torch is loaded.

    Args:
        policy: `system` changes nothing; `tuned` lets the C library keep freed memory; `tcmalloc`
            and `jemalloc` take its place: unless one is preloaded already, this call does not
            return, and the process starts its own command again with the library in place.

    Raises:
        InputError: The library of `tcmalloc` or `jemalloc` is not installed.
    """
    if policy == "tuned":
        keep_freed_memory()
    elif policy != "system":
        preload(policy)


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for the next step instead of returning it to the kernel.

    Works for allocations made afterwards, so it is called first of all. Resident memory then stays
    at the largest step's, plus what fragmentation adds.

    Returns:
        Whether the policy is in force; False where the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = (
        (M_MMAP_MAX, 0),  # buffers of any size come from the heap, which is kept
        (M_TRIM_THRESHOLD, -1),  # as an unsigned size: never give the top of the heap back
        (M_TOP_PAD, HEAP_GROWTH),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
