"""Check a host for a run: cores, memory, /dev/shm, limits, processor, compiler, packages."""

import os
import resource
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import torch
from packaging.requirements import Requirement

from common.errors import InputError
from common.machine import bf16_flag, cpu_flags, installed_versions, mapped_files, slow_bf16
from common.native import (
    NoCompilerError,
    find_compiler,
    is_compiled_ahead,
    usable_instruction_sets,
)
from common.program import FOLDER
from common.wording import counted, listed
from data.annotations import count_pixels
from launch.environment import ALLOCATORS, allocator_library, is_loaded
from launch.limits import FreeMemory
from launch.pinning import RankContext
from launch.ranks import Ranks
from launch.shares import Share
from launch.topology import format_cpu_list, is_number
from retinanet import memory
from retinanet.config import Config
from retinanet.engine.kernel_calls import kernel_sources
from retinanet.memory import MemoryNeed
from retinanet.placement import NOT_PINNED, placed_ranks, plan_of_host
from retinanet.preflight.findings import Finding, amount, failure, ok, warning
from retinanet.preflight.run import KnownData

PLACEMENT = "placement"
SEE_PLAN = "see `retinanet launch plan`"


def check_placement(
    config: Config, ranks: Ranks, *, started: RankContext
) -> tuple[list[Finding], tuple[Share, ...]]:
    """Place this host's ranks, and warn about idle cores; return their shares.

    `ranks` have been started, within what their launcher gave them, or are planned in their place.
    """
    try:
        # Where the launcher's binding of the other ranks is not known, the host's CPUs are planned.
        is_known = started.affinities is not None or ranks.local_size == 1
        if ranks == started.ranks and ranks.launcher != "none" and is_known:
            of_host = placed_ranks(config, started)
            shares = tuple(placed.share for placed in of_host)
            notes = list(dict.fromkeys(note for placed in of_host for note in placed.notes))
        else:
            plan = plan_of_host(config, ranks)
            shares = tuple(rank.share for rank in plan.hosts[0].ranks)
            notes = [note for note in plan.notes if note != NOT_PINNED]
    except InputError as error:
        what, _, fix = str(error).rpartition(": ")
        return [failure(PLACEMENT, what, fix=fix)], ()
    cpus = format_cpu_list(cpu for share in shares for cpu in share.cpus)
    threads = shares[0].threads
    detail = f"{counted(len(shares), 'rank')} of {counted(threads, 'thread')}"
    findings = [
        ok(PLACEMENT, f"{detail} on CPUs {cpus}"),
        *(warning(PLACEMENT, note, fix=SEE_PLAN) for note in notes),
    ]
    return findings, shares


def check_launcher(
    ranks: Ranks, environment: Mapping[str, str], *, planned: int
) -> tuple[Finding, ...]:
    """Warn where a batch script of Slurm with several tasks runs the program without `srun`."""
    tasks = environment.get("SLURM_NTASKS", "")
    if ranks.launcher != "none" or planned > 1 or not is_number(tasks) or int(tasks) < 2:
        return ()
    detail = f"SLURM_NTASKS={tasks}, but this is a single process, not started by srun"
    fix = f"start {tasks} ranks with srun retinanet train …, or mpirun -np {tasks}"
    return (warning("ranks", detail, fix=fix),)


MEMORY = "memory"
LESS_MEMORY = (
    "lower training.batch_size (with training.gradient_accumulation the step stays the same), "
    "evaluation.batch_size, data.image_size or the ranks of this host"
)
MARGIN = 2
"""A run is refused if something is estimated to take so many times the memory that is free."""


def check_memory(
    need: MemoryNeed, *, ranks: int, once: int, not_started: int, free: FreeMemory | None
) -> Finding:
    """Compare the estimated memory of the ranks with the free memory of this host.

    Only what no step can do without is a failure. One rank takes `once` besides, for checkpoints;
    ranks that are not there yet take `not_started` before they begin. [bytes]
    """
    wanted = ranks * need.all + once + not_started
    of_ranks = f"{ranks} ranks × {amount(need.all)}" if ranks > 1 else amount(need.all)
    parts = (
        f"{amount(need.model)} for weights, gradients and optimizer, "
        f"{amount(need.activations)} for the batch, {amount(need.loading)} for data-loading "
        f"workers, {amount(need.other)} for the rest"
    )
    estimate = f"the run needs about {of_ranks} more"
    if once:
        estimate += f", and {amount(once)} to write a checkpoint"
    if free is None:
        return ok(MEMORY, f"{estimate} ({parts}); the free memory of this system is not known")
    have = f"{amount(free.size)} are free in {free.of}"
    # Swap prevents the failure, but not the warning: a run that swaps can start, and is slow.
    if ranks * need.model > free.size + free.swap:
        least = amount(ranks * need.model)
        detail = f"weights, gradients and optimizer alone take {least}, but only {have}"
        return failure(MEMORY, detail, fix="use fewer ranks on this host, or one with more memory")
    if wanted > free.size:
        return warning(MEMORY, f"{have}, but {estimate} ({parts})", fix=LESS_MEMORY)
    return ok(MEMORY, f"{have}; {estimate} ({parts})")


def check_counts(
    config: Config, known: KnownData, *, engine: str, ranks: int, free: FreeMemory | None
) -> list[Finding]:
    """Return a failure for each batch size or number of workers that exceeds the host's memory."""
    if free is None:
        return []
    workers = 0 if config.data.workers == "auto" else config.data.workers
    image = memory.training_bytes(config, num_classes=known.classes, engine=engine)
    evaluated = memory.evaluation_bytes(config, num_classes=known.classes)
    evaluation = memory.evaluation_images(config, known.validation_images)
    findings = []
    for field, count, of, each in (
        ("training.batch_size", memory.training_images(config), "images", image),
        ("evaluation.batch_size", evaluation, "images", evaluated),
        ("data.workers", workers, "for each split", 2 * memory.LOADING_PROCESS),
    ):
        size = count * each
        if ranks * size > (free.size + free.swap) * MARGIN:
            of_ranks = f"{ranks} ranks × {amount(size)}" if ranks > 1 else amount(size)
            detail = (
                f"{field}: {count:,} {of} take about {of_ranks}, but only {amount(free.size)} are "
                f"free in {free.of}"
            )
            fitting = free.size // ranks // each
            fix = f"lower it to {fitting:,} or less" if fitting else "lower data.image_size"
            findings.append(failure(MEMORY, detail, fix=fix))
    return findings


SHARED_MEMORY = "/dev/shm"
SHARED = Path(SHARED_MEMORY)
PAGE, CHANNELS = 4096, 3
AHEAD = 2  # Batches that each process of torch's DataLoader loads ahead


def waiting_batches(config: Config, size: Callable[[int], int]) -> int:
    """Return the total size of the batches that may be in shared memory at one time.

    These wait or are in use, of training and of the evaluation that follows.
    """
    ahead = AHEAD * memory.count_loading_processes(config)
    if not ahead:
        return 0
    in_step = config.training.gradient_accumulation
    training, evaluation = size(memory.training_images(config)), size(config.evaluation.batch_size)
    return (ahead + in_step) * training + (ahead + 1) * evaluation


def bytes_of_batch(images: int, pixels: int) -> int:
    """Return the size of images as loaded, uint8, and of two small tensors of targets of each."""
    # Tensors in shared memory are files of whole pages: boxes and labels take one each.
    return images * (CHANNELS * pixels + 2 * PAGE)


def check_shared_memory(config: Config, *, ranks: int, folder: Path = SHARED) -> Finding:
    """Compare the batches in shared memory with the free space in /dev/shm.

    Gradients need none of it: `retinanet.engine.gradient_sync` takes memory without a name. With
    data.workers=auto processes may load or not, and too little room is a warning.
    """
    workers = memory.count_loading_processes(config)
    if not workers:
        return ok(SHARED_MEMORY, "not needed: no data-loading workers (data.workers=0)")
    try:
        # statvfs succeeds on a read-only mount as well, hence the test file.
        status = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        detail = f"{workers} data-loading workers need it, but no file can be written there: "
        fix = "mount a tmpfs there (docker: --shm-size=1g), or set data.workers=0"
        return failure(SHARED_MEMORY, f"{detail}{error.strerror}", fix=fix)
    batch_bytes = partial(bytes_of_batch, pixels=count_pixels(config.data.image_size))
    wanted = ranks * waiting_batches(config, batch_bytes)
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    which = f"data-loading workers{of_ranks} need up to {amount(wanted)}"
    have = f"{amount(free)} of {amount(size)} are free"
    fix = f"docker run --shm-size={docker_size(2 * wanted)} (or --ipc=host), or data.workers=0"
    if free >= wanted:
        return ok(SHARED_MEMORY, f"{have}; {which}")
    batch = batch_bytes(max(memory.training_images(config), config.evaluation.batch_size))
    if config.data.workers != "auto" and size < batch:
        return failure(SHARED_MEMORY, f"{have}, but one batch takes {amount(batch)}", fix=fix)
    return warning(SHARED_MEMORY, f"{have}, but {which}", fix=fix)


def docker_size(size: int) -> str:
    """Format a size as a docker option, rounded up to a power of two: `256m`, `2g`."""
    megabytes = 64
    while megabytes < size / 2**20:
        megabytes *= 2
    return f"{megabytes // 1024}g" if megabytes >= 1024 else f"{megabytes}m"


OPEN_FILES = "open files"
OTHER_FILES = 100  # Files, sockets and pipes that a rank has open beside loaded tensors


def check_open_files(config: Config, *, limit: int | None = None) -> Finding:
    """Compare a rank's open files with its limit (None: this process's): each tensor is one."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ok(OPEN_FILES, "no limit")
    # Of a batch: the tensor of pixels, and boxes and labels of each image.
    wanted = OTHER_FILES + waiting_batches(config, lambda images: 1 + 2 * images)
    if wanted <= limit:
        return ok(OPEN_FILES, f"limit {limit}; a rank needs up to {wanted}")
    detail = f"limit {limit}, but a rank may need {wanted}: each loaded tensor is a file"
    return warning(OPEN_FILES, detail, fix=f"ulimit -n {2 * wanted}, or lower data.workers")


ALLOCATOR = "allocator"


def check_allocator(name: str) -> Finding:
    """Look for the library of `tcmalloc` or `jemalloc`; the C library is always there."""
    if name not in ALLOCATORS:
        return ok(ALLOCATOR, f"{name}: the C library's")
    if is_loaded(ALLOCATORS[name]):
        return ok(ALLOCATOR, f"{name} is loaded")
    try:
        return ok(ALLOCATOR, f"{name}: {allocator_library(name, started_again=False)}")
    except InputError as error:
        what, _, fix = str(error).partition("; ")
        return failure(ALLOCATOR, what, fix=fix)


PRECISION = "precision"
COMPILER = "C++ compiler"
FLOAT32 = "engine.precision=float32"


def check_precision(
    precision: str, *, convolutions: str = "auto", flags: Collection[str] | None = None
) -> Finding:
    """Check whether the precision, `bf16` or `float32`, is fast on the processor.

    `convolutions` are `auto`, `onednn` or `winograd`, `flags` the processor's; None: this one's.
    """
    known = cpu_flags() if flags is None else flags
    if convolutions == "winograd" and "avx512_bf16" not in known:
        detail = "engine.convolutions=winograd: the processor has no AVX-512 BF16"
        return failure(PRECISION, detail, fix="set auto or onednn")
    if precision != "bf16":
        return ok(PRECISION, f"{precision}, supported by every processor")
    if slow := slow_bf16(known):
        return warning(PRECISION, f"bf16: {slow}", fix=f"set {FLOAT32}")
    return ok(PRECISION, f"bf16, supported by the processor ({bf16_flag(known)})")


def check_compiler(focal_loss: str) -> Finding:
    """Look for the compiler of the C++ kernels, unless they were compiled ahead."""
    best = usable_instruction_sets()[0]
    # The kernels' first use prints why one that is there is not taken.
    if all(is_compiled_ahead(source, best, tell=lambda _: None) for source in kernel_sources()):
        return ok(COMPILER, f"not needed: the kernels for {best} were compiled ahead")
    try:
        compiler = find_compiler()
    except NoCompilerError as error:
        if focal_loss == "kernel":
            return failure(COMPILER, f"engine.focal_loss=kernel: {error}", fix="or set auto")
        return warning(COMPILER, f"{error}", fix="without it, loss and optimizer are slower")
    return ok(COMPILER, " ".join(compiler))


PACKAGES = "packages"
CCL = "oneccl_bind_pt"
IPEX = "intel-extension-for-pytorch"
LOOKED_AT = ("torch", "torchvision", "numpy", "pillow", IPEX, CCL)
OPENMP = ("libgomp", "libiomp5", "libomp")


def check_conflicts(*, engine: str, backend: str) -> list[Finding]:
    """Check for incompatible packages, installed or loaded."""
    versions = installed_versions(LOOKED_AT)
    required = requires("torchvision") or [] if "torchvision" in versions else []
    problems = [
        *pillow_conflict(versions),
        *torchvision_conflict(versions, required=required),
        *same_release(versions, IPEX, is_used=engine == "ipex", instead="engine.name=torch"),
        *same_release(versions, CCL, is_used=backend == "ccl", instead="distributed.backend=gloo"),
    ]
    try:
        # Importing both packages only prints a warning if torch was built for another numpy.
        torch.from_numpy(np.zeros(1)).numpy()
    except (RuntimeError, TypeError) as error:  # torch was built for another numpy
        detail = f"torch does not work with this numpy: {str(error).splitlines()[0]}"
        problems.append(failure(PACKAGES, detail, fix="run `make setup`"))
    problems += openmp_conflict(sorted(mapped_files(*OPENMP)))
    if problems:
        return problems
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [ok(PACKAGES, f"{names}: no known conflict")]


def pillow_conflict(versions: Mapping[str, str]) -> list[Finding]:
    """Return a warning if Pillow-SIMD, which lags behind Pillow's fixes, stands in its place."""
    if "pillow-simd" not in versions:
        return []
    text = f"Pillow-SIMD {versions['pillow-simd']} stands in Pillow's place: it lacks "
    fix = "run `.venv/bin/pip uninstall -y pillow pillow-simd` and `make setup`"
    return [warning(PACKAGES, f"{text}Pillow 13's fixes of critical holes (SECURITY.md)", fix=fix)]


def torchvision_conflict(versions: Mapping[str, str], *, required: Sequence[str]) -> list[Finding]:
    """Return a failure if torchvision's own metadata name another release of torch."""
    torch_version = versions.get("torch", "").partition("+")[0]
    for needed in map(Requirement, required):
        specifier = needed.specifier
        if needed.name == "torch" and torch_version and not specifier.contains(torch_version):
            text = (
                f"torchvision {versions.get('torchvision')} needs torch{specifier}, but torch is "
            )
            return [failure(PACKAGES, f"{text}{torch_version}", fix="run `make setup`")]
    return []


def same_release(
    versions: Mapping[str, str], package: str, *, is_used: bool, instead: str
) -> list[Finding]:
    """Return a finding if an extension of torch has another release number than torch."""
    release, of_torch = versions.get(package, ""), versions.get("torch", "")
    if not release or release.split(".")[:2] == of_torch.split(".")[:2]:
        return []
    text = f"{package} {release} was built for another torch than {of_torch}"
    if is_used:
        return [failure(PACKAGES, text, fix=f"install the build for {of_torch}, or set {instead}")]
    return [ok(PACKAGES, f"{text}; it is not used")]


def openmp_conflict(libraries: Sequence[Path]) -> list[Finding]:
    """Return a warning if two OpenMP libraries are loaded, whose threads compete for cores."""
    # Intel's in the place of GNU's is intended: the dynamic linker takes it for both.
    for is_gnu, fix in (
        (True, "remove from LD_PRELOAD the library that loads the second one"),
        (False, "preload only one of them"),
    ):
        copies = [file for file in libraries if file.name.startswith("libgomp") == is_gnu]
        if len(copies) > 1:
            names = " and ".join(map(str, copies))
            return [warning(PACKAGES, f"two OpenMP libraries are loaded, {names}", fix=fix)]
    return []


VERSIONS = "versions"
NOT_NEEDED = ("nvidia-", "cuda-", "triton")  # CUDA's: CPU-only builds of torch come without
NAMED = 4
AS_PINNED = "run `make setup`, unless you know that these versions work together"


def check_versions(pins: Path | None = None) -> Finding:
    """Compare every package that is pinned for this environment with what is installed."""
    if pins is None:
        lane = "requirements/ipex.txt" if installed_versions([IPEX]) else "requirements.txt"
        pins = FOLDER / lane
    shown = pins.relative_to(FOLDER) if pins.is_relative_to(FOLDER) else pins
    if not pins.is_file():
        return ok(VERSIONS, f"not compared with the tested ones: no {shown} beside the program")
    wanted = read_pins(pins)
    installed = installed_versions(wanted)
    others = differences(wanted, installed)
    if not others:
        return ok(VERSIONS, f"{len(installed)} packages, all as pinned in {shown}")
    return warning(VERSIONS, f"not as pinned in {shown}: {listed(others, NAMED)}", fix=AS_PINNED)


def read_pins(pins: Path) -> dict[str, str]:
    """Return the pinned version of each package that this Python and this machine need."""
    lines = (line.partition("#")[0].strip() for line in pins.read_text("utf-8").splitlines())
    requirements = [Requirement(line) for line in lines if "==" in line]
    return {
        requirement.name: str(requirement.specifier).removeprefix("==")
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    }


def differences(wanted: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Describe what is missing or of another version; a build's local mark (`+cpu`) is none."""
    problems = []
    for name, version in wanted.items():
        if name not in installed:
            if not name.startswith(NOT_NEEDED):
                problems.append(f"{name} {version} is missing")
        elif installed[name].partition("+")[0] != version.partition("+")[0]:
            problems.append(f"{name} is {installed[name]}, pinned {version}")
    return problems
