"""Keeping a process to one core, so that images a second are those of a core."""

import os


def keep_to_one_core() -> None:
    """Keep this process and the threads it will have to the last of the cores it may use.

    The last, because a machine's first core answers most of its interrupts.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
