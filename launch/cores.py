"""Which of a process's cores do what."""

import os

from retinanet.errors import InputError


def reserve_cores(count: int, *, field: str) -> tuple[int, ...]:
    """Take the last `count` of this process's cores away from it and return their numbers.

    Call it before torch is loaded, which makes as many threads as the process then has cores.
    Threads and processes that are started later inherit the rest, unless they are told otherwise.

    Raises:
        InputError: Fewer than one would be left; names `field`.
    """
    if not count:
        return ()
    cores = sorted(os.sched_getaffinity(0))
    if count >= len(cores):
        raise InputError(
            f"{field}: {count} of the {len(cores)} cores that this process may use leaves none for "
            f"training; take at most {len(cores) - 1}"
        )
    os.sched_setaffinity(0, cores[:-count])
    return tuple(cores[-count:])
