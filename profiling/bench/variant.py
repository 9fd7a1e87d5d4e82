"""The pieces of a benchmark: variants, their workload, what a recipe prepares, and runs.

A variant is a way to do the benchmarked thing, under a name. A recipe is a function
`prepare(workload: Workload, **options) -> Prepared`, which the variant's process calls. The end of
the file has the memory settings of a variant: the policies of numactl, set by the process itself,
and transparent huge pages for what the C library allocates.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from common.errors import InputError
from common.machine import installed_versions, read_proc_text
from common.wording import counted
from launch.environment import MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL, MPOL_PREFERRED, set_policy
from launch.shares import Share
from launch.topology import format_cpu_list, parse_cpu_list
from profiling.bench.interpreters import Interpreter, this_interpreter


@dataclass(frozen=True)
class Variant:
    """A variant of the benchmarked operation, run by a worker process."""

    name: str
    about: str  # Description for `--help`
    recipe: str  # What prepares it in its process; see `profiling.bench.worker.load_recipe`
    _: KW_ONLY
    allocator: str = "tuned"  # The memory policy that its process sets before torch is loaded
    memory: str | None = None
    """Memory policy in numactl's terms; None: near the core that first writes the memory."""
    pinned: bool = False
    """Whether its threads are bound to cores as a training binds them; its recipe then takes
    `main_cpus`."""
    share: Share | None = None
    """The CPUs that its threads are bound to, pinned or not; None: it has all cores."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its process, beside those of this one."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """What it needs beside requirements.txt; it is left out where one of them is missing."""
    needs_bf16: bool = False
    """Whether it is left out, unless it is named, where the processor is slow in BF16."""
    needs_ipex: bool = False
    """Whether it computes by IPEX, which has an environment of its own."""
    needs_intel_openmp: bool = False
    """Whether it is left out where Intel's OpenMP is not installed, which goes before torch's own
    in the process of every variant that is `pinned`."""
    cache_variable: str | None = None
    """Variable that names a folder for files of its process, removed when that ends."""
    by_default: bool = True  # Whether it runs when no variants are named
    interpreter: Interpreter | None = None  # The Python of its process; None: this one
    counterpart: str | None = None
    """The variant of the same recipe that this one, in another environment, is compared with."""

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of Python, torch and other packages that it runs with."""
        interpreter = self.interpreter or this_interpreter()
        return {**interpreter.versions, **installed_versions(self.packages)}


def with_counterparts(variants: Sequence[Variant], other: Interpreter) -> list[Variant]:
    """Return the variants, each followed by itself in another environment.

    Those that need IPEX have an environment of their own, so that they stay alone.
    """
    here = this_interpreter()
    label = other.environment if other.torch == here.torch else f"torch {other.torch}"
    both = []
    for variant in variants:
        both.append(variant)
        if not variant.needs_ipex:
            name = f"{variant.name} ({label})"
            both.append(replace(variant, name=name, interpreter=other, counterpart=variant.name))
    return both


def choose(variants: Sequence[Variant], names: str | None) -> list[Variant]:
    """Return the variants of a comma-separated list, in its order.

    None takes those that run by default; `all` takes all.

    Raises:
        InputError: A name is not known, or given twice.
    """
    if names is None:
        return [variant for variant in variants if variant.by_default]
    if names == "all":
        return list(variants)
    known = {variant.name: variant for variant in variants}
    wanted = names.split(",")
    for place, name in enumerate(wanted):
        if name not in known:
            raise InputError(
                f"--contestants: unknown name {name!r}; choose from {', '.join(known)}"
            )
        if name in wanted[:place]:
            raise InputError(f"--contestants: {name!r} is given twice; give it once")
    return [known[name] for name in wanted]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The size of a batch; its content depends on the seed only."""

    images: int = 2
    image_size: int = 800  # Height and width of every image. [pixels]
    classes: int = 264  # Outputs of the classification head for every anchor
    seed: int = 0  # Makes images, boxes and weights

    def __str__(self) -> str:
        side = self.image_size
        return f"{counted(self.images, 'image')} of {side}x{side}, {self.classes} classes"


STANDARD = Workload()  # The workload that targets are given for


@dataclass(frozen=True)
class Prepared:
    """A prepared recipe that can be run repeatedly."""

    run: Callable[[], Any]
    """Runs once; returns details beside the time, numbers by name, or None."""
    facts: Mapping[str, float] = field(default_factory=dict)
    phase: Callable[[], str] = str
    """Returns the name of the phase that runs, such as `forward`; empty outside of all phases."""
    compiled_bytes: Callable[[], int] | None = None
    """Returns the bytes that the compiled graphs of a run move, where it has such graphs: no
    operator is called in them that could be counted."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A worker's measurements of one run."""

    seconds: float
    page_faults: int
    """The minor page faults of the process during the run."""
    rss_mb: float  # Resident memory afterwards. [MB, 10⁶ bytes]
    peak_rss_mb: float  # Largest resident memory of the process since its start. [MB]
    details: dict[str, float]  # What the recipe returned


class Ratio(NamedTuple):
    """The speed-up of one variant over another, or another number of each round."""

    median: float
    lowest: float
    highest: float

    @staticmethod
    def of(rounds: Sequence[float]) -> "Ratio":
        """Return the median of all rounds with their range."""
        return Ratio(median(rounds), min(rounds), max(rounds))

    def shown(self, unit: str = "") -> str:
        """Return such as `2.50 times as fast (2.00–3.00)`; `unit` is ` times as fast`."""
        return f"{self.median:.2f}{unit} ({self.lowest:.2f}–{self.highest:.2f})"


def times_as_fast(runs: Sequence[Run], others: Sequence[Run]) -> Ratio:
    """Compare round by round, so that a disturbance of the machine affects both sides."""
    pairs = zip(runs, others, strict=True)
    return Ratio.of([other.seconds / run.seconds for run, other in pairs])


CHOICES = "local, interleave, interleave=NODES, membind=NODES or preferred=NODE"
MODES = {
    "local": MPOL_LOCAL,
    "interleave": MPOL_INTERLEAVE,
    "membind": MPOL_BIND,
    "preferred": MPOL_PREFERRED,
}


def parse_memory(text: str, *, allowed: Collection[int]) -> tuple[int, frozenset[int]]:
    """Return mode and nodes of `local`, `interleave`, `interleave=0,1`, `membind=0`, `preferred=1`.

    `allowed` are the NUMA nodes that this process may use; `interleave` alone takes all of them.

    Raises:
        InputError: The text is none of these, or a node may not be used.
    """
    name, equals, node_list = text.partition("=")
    # `local` takes no nodes, `interleave` may have some, and the others require them.
    takes_nodes = {"local": (False,), "interleave": (False, True)}.get(name, (True,))
    if name not in MODES or bool(equals) not in takes_nodes:
        raise InputError(f"--memory: expected {CHOICES}, found {text!r}")
    try:
        nodes = parse_cpu_list(node_list)
    except ValueError as error:
        raise InputError(f"--memory: {text}: {error}") from error
    if equals and not nodes:
        raise InputError(f"--memory: {text}: no memory node is given; expected {CHOICES}")
    # MPOL_PREFERRED has one node; several need MPOL_PREFERRED_MANY of Linux 5.15.
    if name == "preferred" and len(nodes) != 1:
        raise InputError(f"--memory: {text}: preferred takes exactly one node")
    missing = nodes - set(allowed)
    if missing:
        raise InputError(
            f"--memory: {text}: memory node {format_cpu_list(missing)} is not available to "
            f"this process; choose from {format_cpu_list(allowed)}"
        )
    if name == "interleave" and not nodes:
        nodes = frozenset(allowed)
    return MODES[name], nodes


def apply_memory(text: str, *, allowed: Collection[int]) -> None:
    """Set the policy for this process; call it before the first large allocation.

    Raises:
        InputError: The kernel does not permit it.
    """
    failure = set_policy(*parse_memory(text, allowed=allowed))
    if failure is not None:
        raise InputError(
            f"--memory: {text}: the kernel rejects the memory policy ({os.strerror(failure)}); in "
            "a container, start it with --cap-add SYS_NICE, or omit --memory"
        )


def memory_remark(text: str, *, allowed: Collection[int]) -> str:
    """Return a note if the choice has no effect on this machine, else an empty text."""
    if len(allowed) > 1:
        return ""
    node = f"node {format_cpu_list(allowed)}" if allowed else "node"
    return f"--memory {text}: no effect, memory {node} is the only one"


ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLE = "glibc.malloc.hugetlb=1"
"""Advises the kernel to back the heap by huge pages; glibc has it since 2.35.
https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html"""


def huge_pages_environment() -> dict[str, str]:
    """Return variables of a process that requests huge pages; the user's tunables are kept."""
    # glibc separates tunables by colons.
    others = os.environ.get("GLIBC_TUNABLES", "")
    return {"GLIBC_TUNABLES": f"{others}:{TUNABLE}" if others else TUNABLE}


def huge_pages_remark(enabled: Path = ENABLED, *, glibc: str | None = None) -> str:
    """Return a note if huge pages have no effect on this machine, else an empty text.

    `enabled` is the kernel's file, `glibc` the C library as `os.confstr` names it (None: this one).
    """
    # The kernel marks the active mode by brackets: `always [madvise] never`.
    chosen = re.search(r"\[(\w+)\]", read_proc_text(enabled))
    reasons = {
        "": f"this kernel has no transparent huge pages ({enabled})",
        "never": f"huge pages are disabled ({enabled}: never)",
        "always": f"all processes use huge pages ({enabled}: always)",
    }
    if reason := reasons.get(chosen[1] if chosen else ""):
        return f"--huge-pages: no effect, {reason}"
    name = glibc if glibc is not None else os.confstr("CS_GNU_LIBC_VERSION") or "no glibc"
    version = re.fullmatch(r"glibc (\d+)\.(\d+).*", name)
    if version is None or (int(version[1]), int(version[2])) < (2, 35):
        return f"--huge-pages: no effect, it requires glibc 2.35 or newer, found {name}"
    return ""


def huge_pages_mb(rollup: Path = Path("/proc/self/smaps_rollup")) -> float:
    """Return this process's memory that lies in huge pages now. [10⁶ bytes]"""
    for line in read_proc_text(rollup).splitlines():
        if line.startswith("AnonHugePages:"):
            # The kernel writes kB and means KiB.
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network and its batch of square images, whose size is in pixels.

    `model` is one of `profiling.layers.study.DEFAULT_BATCH`, `precision` `bf16` or `float32`, and
    `device` `cpu` or `cuda`.
    """

    model: str
    batch: int
    image_size: int
    precision: str
    device: str
    seed: int = 0

    def __str__(self) -> str:
        images = counted(self.batch, "image")
        return f"{self.model}, {images} of {self.image_size}×{self.image_size}, {self.precision}"


PLAIN_EVERY = 5
"""An unwatched iteration follows the first of so many watched ones: what watching adds."""
