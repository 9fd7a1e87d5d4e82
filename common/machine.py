"""Facts about the machine and its processes: processor, packages, code version, memory, identities.

Small files of the kernel, below /proc and /sys/fs/cgroup, may be hidden or missing; then the facts
are. A process's identity is not that of any other that has or had its number.
"""

import os
import platform
import re
import resource
import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from common.errors import InputError
from common.processes import finished
from common.program import FOLDER, IS_INSTALLED, program_version

BF16_FLAGS = ("amx_bf16", "avx512_bf16")
"""Names in /proc/cpuinfo of the BF16 instructions that kernels use: Intel's and AMD's.

Not Arm's `bf16` and `svebf16`: there oneDNN computes most of a step in float32 anyway, and our own
kernels are x86's.
"""
CPUINFO = Path("/proc/cpuinfo")
FLAGS = ("flags", "Features")  # names of their line: on x86, on ARM
PACKAGES = ("torch", "torchvision", "intel-extension-for-pytorch")
# Linux writes `kB` in /proc and means 1,024 bytes.
KIB = 1024
PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
START_TIME = 19
"""Index of the start time in /proc/PID/stat, counted from the first field after the name."""


def cpu_flags(file: Path = CPUINFO) -> set[str]:
    """Return the processor's features as /proc/cpuinfo names them, such as `avx512_bf16`."""
    return set(cpu_field(FLAGS, file).split())


def processor_name() -> str:
    """Return the processor's name as Linux gives it, else as Python does."""
    return cpu_field(("model name",)) or platform.processor()


@cache
def cpu_field(names: tuple[str, ...], file: Path = CPUINFO) -> str:
    """Return the first line of /proc/cpuinfo with one of the names; empty where there is none."""
    named = (line.partition(":") for line in read_proc_text(file).splitlines())
    return next((value.strip() for name, _, value in named if name.strip() in names), "")


def bf16_flag(flags: Collection[str]) -> str | None:
    """Return the name of the BF16 instructions that kernels use; None if there are none."""
    return next((flag for flag in BF16_FLAGS if flag in flags), None)


def fastest_precision(flags: Collection[str] | None = None) -> str:
    """Return `bf16` if the processor (or one with these flags) computes it faster than float32."""
    return "bf16" if bf16_flag(cpu_flags() if flags is None else flags) else "float32"


def slow_bf16(flags: Collection[str] | None = None) -> str:
    """Return what BF16 costs on the processor (or one with these flags); empty if it is fast."""
    known = cpu_flags() if flags is None else flags
    if bf16_flag(known):
        return ""
    # oneDNN converts to float32; below AVX-512 it has no fast BF16 kernels at all.
    if "avx512bw" in known:
        return "this processor (AVX-512 without BF16) converts it to float32: as slow or slower"
    return "this processor has no fast kernels for it; it takes many times as long as float32"


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return versions by name; packages that are not installed are left out.

    Where Pillow-SIMD stands in Pillow's place, its name and version come instead of Pillow's.
    """
    versions = {}
    for package in packages:
        with suppress(PackageNotFoundError, ModuleNotFoundError):
            if package == "pillow":
                # Both packages write the module PIL: Pillow's metadata may outlast its files.
                loaded = import_module("PIL").__version__
                versions["pillow-simd" if ".post" in loaded else package] = loaded
            else:
                versions[package] = version(package)
    return versions


def code_version() -> dict[str, str | bool | None]:
    """Return `repository`, `commit`, whether files differ, and `version`; None if unknown.

    An installed wheel has the commit that it was built from, if it was one.
    """
    address, status = git("remote", "get-url", "origin"), git("status", "--porcelain")
    return {
        "repository": address and re.sub(r"//[^/@]*@", "//", address),  # without a password
        "commit": code_commit(),
        "is_modified": None if status is None else bool(status),
        "version": program_version(),
    }


def code_commit() -> str | None:
    """Return the commit of the repository, or of the build; None if it is not known."""
    return git("rev-parse", "HEAD") or built_commit()


def built_commit(file: Path = FOLDER / "COMMIT") -> str | None:
    """Return the commit of the build of an image or a wheel; None elsewhere, or without one."""
    commit = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    return commit if re.fullmatch("[0-9a-f]{7,64}", commit) else None


def git(*arguments: str) -> str | None:
    """Return git's output for the repository; None if it is no clone, or git is not installed."""
    if IS_INSTALLED:  # the environment may be in a folder of another repository
        return None
    done = finished(["git", "-C", str(FOLDER), *arguments], seconds=10)
    return done.stdout.strip() if done.returncode == 0 else None


def page_faults() -> int:
    """Return the minor page faults of this process so far; after warm-up a step needs none."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident_mb() -> float:
    """Return the memory that this process has in RAM now [10⁶ bytes]."""
    return memory_status("VmRSS")


def peak_resident_mb() -> float:
    """Return the most memory that this process has ever had in RAM [10⁶ bytes].

    Not `ru_maxrss`, which also counts the process before its `exec`, such as a large parent.
    """
    return memory_status("VmHWM")


def private_mb() -> float:
    """Return the memory in RAM that this process shares with no other now [10⁶ bytes]."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return sum(kilobytes) * KIB / 1e6


def anonymous_bytes() -> int:
    """Return the memory in RAM that belongs to no file [bytes]; each further process needs it."""
    return round(memory_status("RssAnon") * 1e6)


def memory_status(name: str, file: Path = PROC / "self/status") -> float:
    """Return a size from Linux's `/proc/self/status`, or a file like it [10⁶ bytes]."""
    return int(read_status(file)[name].split()[0]) * KIB / 1e6


def mapped_files(*prefixes: str) -> set[Path]:
    """Return files that are mapped into this process and whose name starts so."""
    lines = read_proc_text(PROC / "self/maps").splitlines()
    paths = (Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line)
    return {path for path in paths if path.name.startswith(prefixes)}


def available_mb() -> float:
    """Return the memory that Linux can give to processes without swapping [10⁶ bytes]."""
    return memory_status("MemAvailable", PROC / "meminfo")


def environment() -> dict[str, str | int]:
    """Return processor, usable cores, kernel, Python and the packages that compute."""
    facts: dict[str, str | int] = {
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    return facts | installed_versions(PACKAGES)


def require_packages(*names: str, purpose: str, install: str = "`make serving`") -> None:
    """Raise InputError, with the purpose and what installs them, unless packages exist."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{purpose}: {' and '.join(missing)} not installed; run {install}, which adds them"
        )


def read_proc_text(file: Path) -> str:
    """Return the file's text; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_status(file: Path) -> dict[str, str]:
    """Return the fields of a process's or a thread's status; none where it cannot be read."""
    pairs = (line.partition(":") for line in read_proc_text(file).splitlines())
    return {name: value.strip() for name, _, value in pairs}


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process number, and what distinguishes it from others that have or had the same number."""

    namespace: str  # the boot of the machine and the PID namespace in which the number is valid
    number: int
    started: int  # clock ticks from the machine's boot to the start of the process


def own_process() -> ProcessIdentity | None:
    """Return the identity of this process, or None if /proc does not show it."""
    number = os.getpid()
    try:
        shown = int(Path("/proc/self").readlink().name)  # /proc may be another namespace's
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return None
    started = start_time(number)
    if shown != number or started is None:
        return None
    return ProcessIdentity(namespace=namespace, number=number, started=started)


def start_time(process: int) -> int | None:
    """Return when a process was started in clock ticks since boot, or None if it has ended."""
    # The name, in parentheses, may itself hold spaces and parentheses. In the states Z and X the
    # process has ended, but its parent has not yet asked for its status.
    fields = read_proc_text(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
    return int(fields[START_TIME]) if fields and fields[0] not in "ZX" else None


def kill_if_local(target: ProcessIdentity | None) -> None:
    """Send SIGKILL to a process of this host, PID namespace and user, unless it has ended."""
    current = own_process()
    if target is None or current is None or target == current:
        return
    if target.namespace != current.namespace:
        return
    with suppress(OSError):
        # The number may have been reused since the process was identified, by another user too.
        is_ours = Path(f"/proc/{target.number}").stat().st_uid == os.geteuid()
        if is_ours and start_time(target.number) == target.started:
            os.kill(target.number, signal.SIGKILL)


@dataclass(frozen=True)
class ProcessTime:
    """Processor time that a process used on some CPUs."""

    process: int
    name: str  # the kernel's: 15 characters at most
    cores: float  # that it kept busy, on average
    is_ours: bool  # the calling process started it, directly or not


def thread_wait_times() -> dict[int, float]:
    """Return how long [s] each thread was ready without a core; empty if that is not counted."""
    waits = {}
    for folder in (PROC / "self/task").iterdir():
        # https://docs.kernel.org/scheduler/sched-stats.html: running, waiting [ns], timeslices
        fields = read_proc_text(folder / "schedstat").split()
        if len(fields) == 3:
            waits[int(folder.name)] = int(fields[1]) / 1e9
    return waits


def ticks_on(cpus: Collection[int]) -> dict[int, int]:
    """Return processor times [ticks] by process, of threads that ran on these CPUs last."""
    ticks: dict[int, int] = {}
    this_process = str(os.getpid())
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or folder.name == this_process:
            continue
        for stat in folder.glob("task/*/stat"):
            # https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html: the name may hold spaces;
            # behind it, utime and stime are the 12th and 13th field, the last CPU is the 37th
            fields = read_proc_text(stat).rpartition(")")[2].split()
            if len(fields) > 36 and int(fields[36]) in cpus:
                process = int(folder.name)
                ticks[process] = ticks.get(process, 0) + int(fields[11]) + int(fields[12])
    return ticks


def busiest(
    before: dict[int, int], after: dict[int, int], *, seconds: float, least_cores: float
) -> list[ProcessTime]:
    """Return the processes that used at least `least_cores` cores between two calls of `ticks_on`.

    The busiest comes first. A process that is in only one of the two is left out: how much of its
    time belongs to the interval is not known.
    """
    processes = [
        ProcessTime(
            process,
            read_proc_text(PROC / str(process) / "comm").strip(),
            cores,
            is_ours=is_descendant(process),
        )
        for process in before.keys() & after.keys()
        if (cores := (after[process] - before[process]) / TICKS_PER_SECOND / seconds) >= least_cores
    ]
    return sorted(processes, key=lambda process: -process.cores)


def is_descendant(process: int) -> bool:
    """Return whether this process started that one, directly or not."""
    return process > 1 and os.getpid() in (process, *ancestors(process))


def ancestors(process: int) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on, without the first process of all."""
    # 0 for a parent outside of this PID namespace, as in a container.
    while (process := int(read_status(PROC / str(process) / "status").get("PPid", "0"))) > 1:
        yield process
