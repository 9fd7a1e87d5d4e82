"""torch's compute threads and their cores, checked once torch is loaded."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from common.machine import mapped_files
from launch.environment import BINDING_VARIABLES, INTEL_LIBRARIES, loaded_openmp
from launch.limits import thread_affinities
from launch.shares import Share
from launch.topology import format_cpu_list

# torch starts a thread for at least 32,768 numbers of an operator (`at::internal::GRAIN_SIZE`).
WORK_OF_A_THREAD = 1 << 17  # Numbers to which torch surely gives a thread of their own


def check_thread_count(threads: int) -> list[str]:
    """Set torch's number of threads; return a note if it was different."""
    count = torch.get_num_threads()
    if count == threads:
        return []
    torch.set_num_threads(threads)
    return [f"torch started with {count} compute threads instead of {threads}: corrected"]


def check_compute_threads(share: Share, *, openmp: str) -> list[str]:
    """Check that each compute thread is bound to its core, and return notes on what was corrected.

    OpenMP binds the main thread to the first core, when it is loaded (libgomp) or at the first
    parallel region (libiomp5), and what the main thread starts inherits that. So the main thread
    gets all of the rank's cores back, and the variables go, which would bind every other process
    that loads torch to this rank's first core. `openmp` is the library that was planned with.
    """
    notes = []
    if loaded_openmp() != openmp:  # the variables of the other library were set
        notes.append(f"OpenMP: planned for {openmp}, but {loaded_openmp()} is loaded")
    before = thread_affinities()
    # OpenMP starts its threads at the first parallel region. It is run before torch.distributed and
    # data loading start others, so that all new threads are compute threads.
    torch.ones(share.threads * WORK_OF_A_THREAD).mul_(2)
    started = {thread: cpus for thread, cpus in thread_affinities().items() if thread not in before}
    for name in BINDING_VARIABLES:
        os.environ.pop(name, None)
    try:
        os.sched_setaffinity(0, share.cpus)
    except OSError:
        return notes  # not permitted, as `bind_process` has noted
    planned = [{cpu} for cpu in share.cpus[1:]]  # the first is the main thread's
    masks = sorted(started.values(), key=sorted)
    if not share.floating and len(masks) != len(planned):
        notes.append(
            f"OpenMP started {len(masks)} threads instead of {len(planned)}: they may be unbound"
        )
    elif not share.floating and masks != sorted(planned, key=sorted):
        for thread, cpu in zip(started, planned, strict=True):
            os.sched_setaffinity(thread, cpu)
        where = "; ".join(sorted({format_cpu_list(mask) for mask in masks}))
        notes.append(
            f"the compute threads ran on CPUs {where} instead of one each of "
            f"{format_cpu_list(share.cpus[1:])}: corrected"
        )
    allowed = {*share.cpus, *share.comm_cpus, *share.loader_cpus}
    elsewhere = [thread for thread, cpus in thread_affinities().items() if not cpus <= allowed]
    for thread in elsewhere:
        os.sched_setaffinity(thread, share.comm_cpus or share.cpus)
    if elsewhere:
        notes.append(f"{len(elsewhere)} threads ran on CPUs of other ranks: moved back")
    return notes


@contextmanager
def calling_thread_on(cpus: tuple[int, ...]) -> Iterator[None]:
    """Bind the calling thread and its child threads to these CPUs in the context.

    Without CPUs, or where the kernel refuses since one was taken away, it stays where it is.
    """
    if not cpus:
        yield
        return
    # 0 is the calling thread and not the process: its other threads stay where they are.
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def compute_alone() -> None:
    """Compute in the calling thread alone, so that it does not disturb the rank's threads."""
    # torch sets the number of threads of each thread at its first use, which would undo the call
    # below: so it comes first.
    torch.get_num_threads()
    # OpenMP keeps the number for each thread that starts a parallel region, so that the main
    # thread's does not change.
    for library in mapped_files(*INTEL_LIBRARIES, "libgomp"):
        ctypes.CDLL(str(library)).omp_set_num_threads(1)
