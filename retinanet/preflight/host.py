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
from PIL import Image, features

from common.errors import InputError
from common.machine import bf16_flag, cpu_flags, installed_versions
from common.native import (
    NoCompilerError,
    find_compiler,
    library_ahead,
    mapped_files,
    usable_instruction_sets,
)
from launch.environment import ALLOCATORS, is_loaded, library_of
from launch.limits import MemoryLeft
from launch.placement import count_ranks
from launch.ranks import Ranks
from launch.topology import format_cpu_list, is_number
from retinanet import memory
from retinanet.config import Config
from retinanet.engine.kernel_calls import kernel_sources
from retinanet.memory import MemoryNeed
from retinanet.placement import NOT_PINNED, plan_of_host
from retinanet.preflight.findings import Finding, amount, failure, ok, warning
from retinanet.preflight.run import KnownData

PLACEMENT = "placement"


def check_placement(config: Config, ranks: Ranks) -> list[Finding]:
    """Plan the ranks of this host as they will place themselves, and warn of idle cores."""
    try:
        plan = plan_of_host(config, ranks)
    except InputError as error:
        what, _, fix = str(error).rpartition(": ")
        return [failure(PLACEMENT, what, fix=fix)]
    shares = [rank.share for rank in plan.hosts[0].ranks]
    cpus = format_cpu_list(cpu for share in shares for cpu in share.cpus)
    threads = shares[0].threads
    found = f"{count_ranks(len(shares))} of {threads} thread{'s' if threads > 1 else ''}"
    notes = [note for note in plan.notes if note != NOT_PINNED]
    return [
        ok(PLACEMENT, f"{found} on CPUs {cpus}"),
        *(warning(PLACEMENT, note, fix="see `python -m launch plan`") for note in notes),
    ]


def check_launcher(
    ranks: Ranks, environment: Mapping[str, str], *, planned: int
) -> tuple[Finding, ...]:
    """Warn where a batch script of Slurm with several tasks runs the program without `srun`."""
    tasks = environment.get("SLURM_NTASKS", "")
    if ranks.launcher != "none" or planned > 1 or not is_number(tasks) or int(tasks) < 2:
        return ()
    found = f"SLURM_NTASKS={tasks}, and this process trains alone: srun did not start it"
    fix = f"start {tasks} ranks with srun python train.py …, or mpirun -np {tasks}"
    return (warning("ranks", found, fix=fix),)


MEMORY = "memory"
LESS_MEMORY = (
    "lower training.batch_size (with training.gradient_accumulation the step stays the same), "
    "evaluation.batch_size, data.image_size or the ranks of this host"
)
MARGIN = 2
"""A run is refused if something is estimated to take so many times the memory that is free."""


def check_memory(
    need: MemoryNeed, *, ranks: int, once: int, not_started: int, left: MemoryLeft | None
) -> Finding:
    """Compare an estimate of each rank's need with what processes of this host may still take.

    Only what no step can do without is a failure. One rank takes `once` besides, for checkpoints;
    ranks that are not there yet take `not_started` before they begin. [bytes]
    """
    wanted = ranks * need.all + once + not_started
    of_ranks = f"{ranks} ranks × {amount(need.all)}" if ranks > 1 else amount(need.all)
    parts = (
        f"about {amount(need.model)} of weights, gradients and optimizer, "
        f"{amount(need.activations)} for the batch, {amount(need.other)} of other things, "
        f"{amount(need.loading)} of loading processes"
    )
    estimate = f"the ranks will take {of_ranks} more" if ranks > 1 else f"the run: {of_ranks} more"
    if once:
        estimate += f", and {amount(once)} while a checkpoint is written"
    if left is None:
        return ok(MEMORY, f"{estimate} ({parts}); the system does not say what is free")
    have = f"{amount(left.size)} are free in {left.of}"
    if ranks * need.model > left.size + left.swap:
        least = amount(ranks * need.model)
        found = f"weights, gradients and optimizer alone take {least}, and only {have}"
        return failure(MEMORY, found, fix="use fewer ranks on this host, or one with more memory")
    if wanted > left.size:
        return warning(MEMORY, f"{have}, and {estimate} ({parts})", fix=LESS_MEMORY)
    return ok(MEMORY, f"{have}; {estimate} ({parts})")


def check_counts(
    config: Config, known: KnownData, *, engine: str, ranks: int, left: MemoryLeft | None
) -> list[Finding]:
    """Return a failure for each batch or number of loading processes that no such host can hold."""
    if left is None:
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
        if ranks * size > (left.size + left.swap) * MARGIN:
            of_ranks = f"{ranks} ranks × {amount(size)}" if ranks > 1 else amount(size)
            found = (
                f"{field}: {count:,} {of} take about {of_ranks}, and only {amount(left.size)} are "
                f"free in {left.of}"
            )
            fitting = left.size // ranks // each
            fix = f"lower it to {fitting:,} or less" if fitting else "lower data.image_size"
            findings.append(failure(MEMORY, found, fix=fix))
    return findings


SHARED_MEMORY = "/dev/shm"
SHARED = Path(SHARED_MEMORY)
PAGE, CHANNELS = 4096, 3
AHEAD = 2  # Batches that each process of torch's DataLoader loads ahead


def waiting_batches(config: Config, size: Callable[[int], int]) -> int:
    """Sum a size of batches over those that loading processes may have handed over at one time.

    These wait or are in use, of training and of the evaluation that follows.
    """
    ahead = AHEAD * memory.loading_processes_of(config)
    if not ahead:
        return 0
    in_step = config.training.gradient_accumulation
    training, evaluation = size(memory.training_images(config)), size(config.evaluation.batch_size)
    return (ahead + in_step) * training + (ahead + 1) * evaluation


def bytes_of_batch(images: int, image_size: int) -> int:
    """Return the size of pixels as loaded, uint8, and of two small tensors of targets an image."""
    return images * (CHANNELS * image_size**2 + 2 * PAGE)


def check_shared_memory(config: Config, *, ranks: int, folder: Path = SHARED) -> Finding:
    """Compare the batches that loading processes hand over with the room in /dev/shm.

    Gradients need none of it: `retinanet.engine.gradient_sync` takes memory without a name. With
    data.workers=auto processes may load or not, and too little room is a warning.
    """
    workers = memory.loading_processes_of(config)
    if not workers:
        found = "not needed: the training process loads images itself (data.workers=0)"
        return ok(SHARED_MEMORY, found)
    try:
        status = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        found = f"{workers} loading processes need it, and a file there fails: "
        fix = "mount a tmpfs there (docker: --shm-size=1g), or set data.workers=0"
        return failure(SHARED_MEMORY, f"{found}{error.strerror}", fix=fix)
    size_of = partial(bytes_of_batch, image_size=config.data.image_size)
    wanted = ranks * waiting_batches(config, size_of)
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    which = f"loading processes{of_ranks} hand over up to {amount(wanted)} at a time"
    have = f"{amount(free)} of {amount(size)} are free"
    fix = f"docker run --shm-size={docker_size(2 * wanted)} (or --ipc=host), or data.workers=0"
    if free >= wanted:
        return ok(SHARED_MEMORY, f"{have}; {which}")
    batch = size_of(max(memory.training_images(config), config.evaluation.batch_size))
    if config.data.workers != "auto" and size < batch:
        return failure(SHARED_MEMORY, f"{have}, and one batch takes {amount(batch)}", fix=fix)
    return warning(SHARED_MEMORY, f"{have}, and {which}", fix=fix)


def docker_size(size: int) -> str:
    """Return a size as docker takes it, in whole powers of two: `256m`, `2g`."""
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
        return ok(OPEN_FILES, f"{limit} are allowed, a rank has up to {wanted}")
    found = f"{limit} are allowed, and a rank may have {wanted}: loaded tensors are files"
    return warning(OPEN_FILES, found, fix=f"ulimit -n {2 * wanted}, or lower data.workers")


ALLOCATOR = "allocator"


def check_allocator(name: str) -> Finding:
    """Look for the library of `tcmalloc` or `jemalloc`; the C library is always there."""
    if name not in ALLOCATORS:
        return ok(ALLOCATOR, f"{name}: the C library's")
    if is_loaded(ALLOCATORS[name]):
        return ok(ALLOCATOR, f"{name} is loaded")
    try:
        return ok(ALLOCATOR, f"{name}: {library_of(name, started_again=False)}")
    except InputError as error:
        what, _, fix = str(error).partition("; ")
        return failure(ALLOCATOR, what, fix=fix)


PRECISION = "precision"
COMPILER = "C++ compiler"
FLOAT32 = "engine.precision=float32"


def check_precision(
    precision: str, *, convolutions: str = "auto", flags: Collection[str] | None = None
) -> Finding:
    """Check whether the processor has instructions for the precision, `bf16` or `float32`.

    `convolutions` are `auto`, `onednn` or `winograd`, `flags` the processor's; None: this one's.
    """
    known = cpu_flags() if flags is None else flags
    if convolutions == "winograd" and "avx512_bf16" not in known:
        found = "engine.convolutions=winograd: the processor has no AVX-512 BF16"
        return failure(PRECISION, found, fix="take auto or onednn")
    instructions = bf16_flag(known)
    if precision != "bf16":
        return ok(PRECISION, f"{precision}, which every processor has")
    if instructions:
        return ok(PRECISION, f"bf16, by the processor's {instructions}")
    if "avx512bw" in known:
        found = "bf16, which this processor (AVX-512 without BF16) computes by way of float32"
        return warning(PRECISION, found, fix=f"{FLOAT32} is as fast or faster")
    found = "bf16, for which this processor has no instructions: steps take many times as long"
    return warning(PRECISION, found, fix=f"set {FLOAT32}")


def check_compiler(focal_loss: str) -> Finding:
    """Look for the compiler of the C++ kernels, unless they were compiled ahead."""
    best = usable_instruction_sets()[0]
    if all(library_ahead(source, best).exists() for source in kernel_sources()):
        return ok(COMPILER, f"not needed: kernels were compiled ahead, for {best} too")
    try:
        compiler = find_compiler()
    except NoCompilerError as error:
        if focal_loss == "kernel":
            return failure(COMPILER, f"engine.focal_loss=kernel: {error}", fix="or take auto")
        return warning(COMPILER, f"{error}", fix="without it loss and optimizer are slower")
    return ok(COMPILER, " ".join(compiler))


PACKAGES = "packages"
CCL = "oneccl_bind_pt"
IPEX = "intel-extension-for-pytorch"
LOOKED_AT = ("torch", "torchvision", "numpy", "pillow", "pillow-simd", IPEX, CCL)
OPENMP = ("libgomp", "libiomp5", "libomp")


def check_conflicts(*, engine: str, backend: str) -> list[Finding]:
    """Look for packages, installed or loaded, that are known not to work together."""
    versions = installed_versions(LOOKED_AT)
    required = requires("torchvision") or [] if "torchvision" in versions else []
    # The version that Pillow's compiled part was built as, whatever packages are noted.
    pillow = str(features.version("pil") or Image.__version__)
    problems = [
        *pillow_conflict(versions, loaded=pillow),
        *torchvision_conflict(versions, required=required),
        *same_release(versions, IPEX, is_used=engine == "ipex", instead="engine.name=torch"),
        *same_release(versions, CCL, is_used=backend == "ccl", instead="distributed.backend=gloo"),
    ]
    try:
        torch.from_numpy(np.zeros(1)).numpy()
    except (RuntimeError, TypeError) as error:  # torch was built for another numpy
        found = f"torch does not take numpy's arrays: {str(error).splitlines()[0]}"
        problems.append(failure(PACKAGES, found, fix="run `make setup`"))
    problems += openmp_conflict(sorted(mapped_files(*OPENMP)))
    if problems:
        return problems
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [ok(PACKAGES, f"{names}: none is known to disturb another")]


def pillow_conflict(found: Mapping[str, str], *, loaded: str) -> list[Finding]:
    """Return a warning if Pillow and Pillow-SIMD, both the module PIL, overwrote one another."""
    pillow, simd = found.get("pillow", ""), found.get("pillow-simd", "")
    # `make simd` puts an empty `pillow …+simd` beside it.
    if simd and pillow and not pillow.endswith("+simd"):
        text = f"pillow {pillow} and pillow-simd {simd} are both installed, as one module PIL"
        return [warning(PACKAGES, text, fix="run `make pillow`, or `make simd`")]
    noted = simd or pillow
    if noted and loaded != noted:
        text = f"the module PIL is version {loaded}, and the package says {noted}: half replaced"
        return [warning(PACKAGES, text, fix="run `make pillow`")]
    return []


def torchvision_conflict(found: Mapping[str, str], *, required: Sequence[str]) -> list[Finding]:
    """Return a failure if torchvision's own metadata name another release of torch."""
    torch_version = found.get("torch", "").partition("+")[0]
    for needed in map(Requirement, required):
        specifier = needed.specifier
        if needed.name == "torch" and torch_version and not specifier.contains(torch_version):
            text = f"torchvision {found.get('torchvision')} needs torch{specifier}, and there "
            return [failure(PACKAGES, f"{text}is {torch_version}", fix="run `make setup`")]
    return []


def same_release(
    found: Mapping[str, str], package: str, *, is_used: bool, instead: str
) -> list[Finding]:
    """Return a finding if an extension of torch has another release number than torch."""
    release, of_torch = found.get(package, ""), found.get("torch", "")
    if not release or release.split(".")[:2] == of_torch.split(".")[:2]:
        return []
    text = f"{package} {release} was made for another torch than {of_torch}"
    if is_used:
        return [failure(PACKAGES, text, fix=f"install that of torch {of_torch}, or set {instead}")]
    return [ok(PACKAGES, f"{text}; it is not used")]


def openmp_conflict(libraries: Sequence[Path]) -> list[Finding]:
    """Return a warning if two OpenMP libraries are loaded, whose threads compete for cores."""
    # Intel's in the place of GNU's is intended: the dynamic linker takes it for both.
    for is_gnu, fix in (
        (True, "take out of LD_PRELOAD what brings the second one"),
        (False, "preload one of them alone"),
    ):
        copies = [file for file in libraries if file.name.startswith("libgomp") == is_gnu]
        if len(copies) > 1:
            names = " and ".join(map(str, copies))
            return [warning(PACKAGES, f"two OpenMP libraries are loaded, {names}", fix=fix)]
    return []


VERSIONS = "versions"
PINS = Path(__file__).resolve().parents[2] / "requirements.txt"
NOT_NEEDED = ("nvidia-", "triton")  # CUDA's, which CPU-only builds of torch come without
NAMED = 4
AS_PINNED = "run `make setup`, or go on where you know that they work together"


def check_versions(pins: Path = PINS) -> Finding:
    """Compare every pinned package with what is installed."""
    if not pins.is_file():
        return ok(VERSIONS, f"{pins} is not there to compare with")
    # Lines such as `numpy==2.4.6   # why`.
    lines = (line.partition("#")[0] for line in pins.read_text(encoding="utf-8").splitlines())
    pairs = (line.split("==", 1) for line in lines if "==" in line)
    wanted = {name.strip(): version.strip() for name, version in pairs}
    installed = installed_versions(wanted)
    others = differences(wanted, installed)
    if not others:
        return ok(VERSIONS, f"{len(installed)} packages, all as {pins.name} pins them")
    names = ", ".join(others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return warning(VERSIONS, f"not as {pins.name} pins them: {names}{more}", fix=AS_PINNED)


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
