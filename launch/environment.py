"""The environment of a rank before torch is loaded: variables, preloaded libraries, memory policy.

- An allocator in the C library's place, and Intel's OpenMP in that of torch's libgomp. The dynamic
  linker puts them there when a program starts (`LD_PRELOAD`), not later; so a process that needs
  them starts its own command again, once: same process id, arguments, open pipes and pinning.
- The allocator's policy. torch takes and gives back hundreds of large buffers in a step. glibc gets
  each one from the kernel and returns it: fresh pages cost more time than the step's arithmetic.
- The kernel's memory policy, which takes memory near the rank's cores. It counts for the calling
  thread, and for threads and processes that it starts afterwards; see
  https://man7.org/linux/man-pages/man2/set_mempolicy.2.html.
"""

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from common.errors import InputError
from common.machine import mapped_files
from launch.shares import Share

KMP_VARIABLES = ("KMP_AFFINITY", "KMP_HW_SUBSET")
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", *KMP_VARIABLES)
"""All variables that set where an OpenMP library's threads run; some override others."""

ADVICE = {"OMP_NUM_THREADS": "set launch.threads={} instead"}
ADVICE |= dict.fromkeys(
    ("CCL_WORKER_COUNT", "CCL_WORKER_AFFINITY"), "set launch.comm_cores instead"
)
"""Other variables in which the plan goes before the user's environment, and what to use instead."""


def has_ccl() -> bool:
    """Return whether oneCCL's bindings for torch are installed, without loading them."""
    return find_spec("oneccl_bindings_for_pytorch") is not None


def rank_environment(
    share: Share, *, openmp: str, backend: str, local_rank: int, local_ranks: int
) -> dict[str, str]:
    """Return the variables of a rank, which are set before torch is loaded.

    `openmp` is `gnu` or `intel`; of the backends only `ccl` has variables.
    """
    variables = {"OMP_NUM_THREADS": str(share.threads)}
    if share.floating:
        variables["OMP_PROC_BIND"] = "false"
    elif openmp == "intel":
        # Thread i on the i-th of the list, "Thread Affinity Interface" in the guide of Intel's
        # compiler: https://www.intel.com/content/www/us/en/docs/cpp-compiler/
        places = ",".join(map(str, share.cpus))
        variables["KMP_AFFINITY"] = f"granularity=fine,explicit,proclist=[{places}]"
    else:
        # https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fCPU_005fAFFINITY.html
        variables["GOMP_CPU_AFFINITY"] = " ".join(map(str, share.cpus))
    if openmp == "intel":
        variables["KMP_BLOCKTIME"] = "1"  # [ms] that a thread spins before it sleeps
    if backend == "ccl":
        # oneCCL's threads: on the rank's communication cores, or on its last. The variable lists
        # the cores of all the host's ranks one after another, and a rank takes its own part by its
        # local number. As each rank has an environment of its own, it repeats its own cores. Left
        # out, oneCCL would take the last cores of the host, which other ranks compute on. The local
        # numbers are given because oneCCL reads those of Intel MPI only, and not all launchers'.
        # https://uxlfoundation.github.io/oneCCL/env-variables.html
        workers = share.comm_cpus or share.cpus[-1:]
        variables |= {
            "CCL_WORKER_COUNT": str(len(workers)),
            "CCL_WORKER_AFFINITY": ",".join(map(str, workers * local_ranks)),
            "CCL_PROCESS_LAUNCHER": "none",
            "CCL_LOCAL_RANK": str(local_rank),
            "CCL_LOCAL_SIZE": str(local_ranks),
        }
    return variables


def use_environment(variables: Mapping[str, str], *, bound: bool, launcher: str) -> list[str]:
    """Put a rank's variables into this process's environment; the libraries read them later.

    The plan sets where threads run, and how many there are; else the user's variables go first. No
    other binding may go before that of a `bound` rank. torchrun sets OMP_NUM_THREADS=1 by itself.

    Returns a sentence on each variable of the user's that is not used.
    """
    replaced = dict.fromkeys(BINDING_VARIABLES, "set launch.pin=false to keep it")
    replaced = {**replaced, **ADVICE} if bound else ADVICE
    notes = []
    for name, advice in replaced.items():
        value = os.environ.get(name)
        if value is None or value == variables.get(name):
            continue
        # Also variables that the plan does not set, since some of them override others.
        if name in BINDING_VARIABLES:
            del os.environ[name]
        elif name not in variables:
            continue
        if (launcher, name, value) != ("torchrun", "OMP_NUM_THREADS", "1"):
            notes.append(f"{name}={value} in the environment is ignored; {advice.format(value)}")
    for name, value in variables.items():
        if name in replaced or name not in os.environ:
            os.environ[name] = value
    return notes


STARTED_AGAIN = "RETINANET_PRELOADED"
"""Set while the command starts again, so that it cannot do so twice."""


@dataclass(frozen=True)
class Allocator:
    """A library that replaces malloc, and the settings with which it keeps freed memory."""

    libraries: tuple[str, ...]  # Names without `lib` and `.so`, the best first
    package: str
    settings: Mapping[str, str]  # Environment variables; what the user has set goes first


# A rate of 0 and a decay of −1 mean that freed memory is never returned to the kernel.
ALLOCATORS = {
    "tcmalloc": Allocator(
        ("tcmalloc_minimal", "tcmalloc"), "libtcmalloc-minimal4", {"TCMALLOC_RELEASE_RATE": "0"}
    ),
    "jemalloc": Allocator(
        ("jemalloc",), "libjemalloc2", {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
    ),
}


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # From glibc's malloc.h
HEAP_GROWTH = 64 << 20  # The heap grows by at least this much at a time. [bytes]


def set_allocator(policy: str, *, with_openmp: bool = False) -> None:
    """Set the memory policy of this process; call it first of all, before MPI and torch.

    `system` changes nothing; `tuned` makes glibc keep freed memory for the next step instead of
    returning it to the kernel: resident memory then stays at the largest step's, plus what
    fragmentation adds. `tcmalloc` and `jemalloc` take the C library's place, and `with_openmp`
    Intel's OpenMP that of torch's, if it is installed: unless they are preloaded already, this call
    does not return, and the process starts its own command again, once, with them in place. A
    library that the user has preloaded is taken as it is.

    Raises:
        InputError: The library of `tcmalloc` or `jemalloc` is not installed, or the dynamic linker
            does not take it.
    """
    # Removed at once: a child process that inherited the variable could not start itself again.
    started_again = os.environ.pop(STARTED_AGAIN, None) is not None
    environment = dict(os.environ)
    openmp = find_intel() if with_openmp and not started_again and not intel_is_loaded() else None
    if openmp is not None:
        environment = preloading(environment, str(openmp), {})
    if policy in ALLOCATORS and not is_loaded(ALLOCATORS[policy]):
        library = allocator_library(policy, started_again=started_again)
        environment = preloading(environment, library, ALLOCATORS[policy].settings)
    if environment != os.environ:
        # `exec` discards what is still in Python's buffers.
        sys.stdout.flush()
        sys.stderr.flush()
        # `orig_argv` has the options of Python too, such as `-m`. Its first item may be a name that
        # was found on PATH, so that the path of the interpreter replaces it.
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**environment, STARTED_AGAIN: policy})
    if policy == "tuned":
        with suppress(OSError, AttributeError):  # the C library is not glibc
            # This keeps memory of the main thread's arena only. That is enough: on a CPU autograd's
            # backward pass runs in the thread that calls it.
            mallopt = ctypes.CDLL("libc.so.6").mallopt
            for name, value in (
                (M_MMAP_MAX, 0),  # buffers of any size come from the heap, which is kept
                (M_TRIM_THRESHOLD, -1),  # as an unsigned size: never give the top of the heap back
                (M_TOP_PAD, HEAP_GROWTH),
            ):
                if mallopt(name, value) != 1:
                    break


def allocator_library(name: str, *, started_again: bool) -> str:
    """Return the library of an allocator that is not loaded.

    Raises:
        InputError: It is not installed, or starting again with it was of no use.
    """
    allocator = ALLOCATORS[name]
    library = find(allocator)
    if library is None or started_again:
        problem = f"{library} cannot be preloaded" if library else "its library is not installed"
        raise InputError(
            f"engine.allocator: {name}: {problem}; apt-get install {allocator.package}, start "
            "with LD_PRELOAD=/path/to/the/library, or set engine.allocator=tuned"
        )
    return library


def is_loaded(allocator: Allocator) -> bool:
    """Return whether one of the allocator's libraries is part of this process."""
    return bool(mapped_files(*(f"lib{name}.so" for name in allocator.libraries)))


def find(allocator: Allocator) -> str | None:
    """Return the library: a path in this environment (such as conda's), or the linker's name."""
    folder = Path(sys.prefix) / "lib"
    for name in allocator.libraries:
        in_environment = sorted(map(str, folder.glob(f"lib{name}.so*")))
        if library := next(iter(in_environment), None) or find_library(name):
            return library
    return None


def preloading(
    environment: Mapping[str, str], library: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """Return an environment with the library before all others, and the settings that it lacks."""
    others = environment.get("LD_PRELOAD", "")
    preloaded = f"{library}:{others}" if others else library
    return {**settings, **environment, "LD_PRELOAD": preloaded}


SYSTEM_CALLS = {"x86_64": 238, "aarch64": 237}
"""The number of set_mempolicy; the C library has no function for it."""

MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL = 1, 2, 3, 4
MPOL_PREFERRED_MANY = 5  # since Linux 5.15
BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def prefer_memory(nodes: Collection[int], *, allowed: Collection[int]) -> str | None:
    """Prefer memory of the NUMA nodes of the rank's cores, as long as they have any.

    `allowed` is the kernel's `Mems_allowed`. Returns what was lost where the policy cannot be set.
    """
    if len(allowed) < 2:
        return None
    usable = sorted(set(nodes) & set(allowed))
    which = "memory node" + ("s " if len(nodes) > 1 else " ") + ", ".join(map(str, sorted(nodes)))
    if not usable:
        return f"{which}: not allowed (Mems_allowed), so memory comes from other, slower nodes"
    # Never MPOL_BIND, which also keeps memory on the nodes: there a full node, of page cache or of
    # a neighbour, ends a night's run as out of memory, though the next node has room. Before Linux
    # 5.15 only one node can be preferred; to several, the kernel's own rule comes closest, which
    # takes each page from the node of the core that first writes it.
    failure = set_policy(MPOL_PREFERRED if len(usable) == 1 else MPOL_PREFERRED_MANY, usable)
    if failure is None:
        return None
    effect = "each page is placed near the core that writes it first, possibly another rank's"
    if failure == errno.EPERM:
        return (
            f"{which}: the memory policy is not permitted, so {effect}; start the container with "
            "--cap-add SYS_NICE, or with a seccomp profile that permits set_mempolicy"
        )
    return f"{which}: the memory policy cannot be set ({os.strerror(failure)}), so {effect}"


def set_policy(mode: int, nodes: Collection[int]) -> int | None:
    """Make the system call; return its error number, or None. MPOL_LOCAL takes no nodes."""
    call = SYSTEM_CALLS.get(platform.machine())
    if call is None:
        return errno.ENOSYS
    mask = (ctypes.c_ulong * (max(nodes, default=0) // BITS + 1))()
    for node in nodes:
        mask[node // BITS] |= 1 << node % BITS
    library = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than this number (`get_nodes` in mm/mempolicy.c).
    size = ctypes.c_ulong(len(mask) * BITS + 1)
    if library.syscall(ctypes.c_long(call), ctypes.c_int(mode), mask, size) == 0:
        return None
    return ctypes.get_errno()


INTEL_LIBRARIES = ("libiomp5.so", "libomp.so")
"""Intel's, and LLVM's, which is the same library and what conda's `libiomp5.so` is a link to."""


def installed_openmp() -> str:
    """Return `intel` where libiomp5 is preloaded or in this environment, else `gnu`."""
    return "intel" if intel_is_loaded() or find_intel() else "gnu"


def loaded_openmp() -> str:
    """Return `intel` where libiomp5 is loaded, by `set_allocator`, else `gnu`."""
    return "intel" if intel_is_loaded() else "gnu"


def find_intel() -> Path | None:
    """Return libiomp5 of this environment, of the package `intel-openmp`."""
    library = Path(sys.prefix) / "lib" / INTEL_LIBRARIES[0]
    return library if library.is_file() else None


def intel_is_loaded() -> bool:
    """Return whether Intel's OpenMP is mapped into this process."""
    return bool(mapped_files(*INTEL_LIBRARIES))
