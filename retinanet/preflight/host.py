"""Whether the allocator that is asked for is installed.

TODO-DOC Whether the ranks of a host find their cores, and what that leaves idle.

TODO-DOC Whether the processor and the tools of this host suit the engine that is asked for.

TODO-DOC Packages that are known not to work together.

TODO-DOC Whether the packages that are installed are those that requirements.txt pins.

TODO-DOC Whether loading processes find room in /dev/shm, through which they hand over batches.

Gradients need none of it: `retinanet.engine.shared_gradients` takes memory without a name, which no
mount limits. It counts as memory, see `memory_need`.

TODO-DOC Whether a process may open as many files as its loading processes hand over tensors.

TODO-DOC Whether a process that trains alone was meant to be one of several.
"""

import os
import resource
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
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
from launch.limits import host_cpus, read_allowance
from launch.mpirun import ranks_option
from launch.placement import count_ranks
from launch.ranks import Ranks
from launch.topology import format_cpu_list, is_number, read_topology
from retinanet.config import Config
from retinanet.engine.kernel_calls import kernel_sources
from retinanet.placement import NOT_PINNED, configured_plan
from retinanet.preflight.findings import Finding, amount, failure, ok, warning

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


PLACEMENT = "placement"


def check_placement(config: Config, ranks: Ranks, *, host_name: str) -> list[Finding]:
    """Plan the ranks of this host, as they will place themselves.

    Args:
        config: Its sections `launch` and `distributed`, and the cores that load images.
        ranks: Their number on this host; what started them.
        host_name: This host's.
    """
    host = read_topology()
    try:
        plan = configured_plan(
            config,
            host,
            allowed=host.restricted(host_cpus(ranks)),
            quota=read_allowance().quota,
            hosts=((host_name, ranks.local_size),),
            option=ranks_option(ranks.launcher),
        )
    except InputError as error:
        what, _, fix = str(error).rpartition(": ")
        return [failure(PLACEMENT, what, fix=fix)]
    shares = [one.share for one in plan.hosts[0].ranks]
    cpus = format_cpu_list(cpu for share in shares for cpu in share.cpus)
    threads = shares[0].threads
    found = f"{count_ranks(len(shares))} of {threads} thread{'s' if threads > 1 else ''}"
    notes = [note for note in plan.notes if note != NOT_PINNED]
    return [
        ok(PLACEMENT, f"{found} on CPUs {cpus}"),
        *(warning(PLACEMENT, note, fix="see `python -m launch plan`") for note in notes),
    ]


PRECISION = "precision"
COMPILER = "C++ compiler"
FLOAT32 = "engine.precision=float32"


def check_precision(
    precision: str, *, convolutions: str = "auto", flags: Collection[str] | None = None
) -> Finding:
    """Look whether the processor has instructions for the precision.

    Args:
        precision: `bf16` or `float32`.
        convolutions: `auto`, `onednn` or `winograd`.
        flags: The processor's; None: this one's.
    """
    known = cpu_flags() if flags is None else flags
    if convolutions == "winograd" and "avx512_bf16" not in known:
        found = "engine.convolutions=winograd: the processor has no AVX-512 BF16"
        return failure(PRECISION, found, fix="take auto or onednn")
    own = bf16_flag(known)
    if precision != "bf16":
        return ok(PRECISION, f"{precision}, which every processor has")
    if own:
        return ok(PRECISION, f"bf16, by the processor's {own}")
    if "avx512bw" in known:
        found = "bf16, which this processor (AVX-512 without BF16) computes by way of float32"
        return warning(PRECISION, found, fix=f"{FLOAT32} is as fast or faster")
    found = "bf16, for which this processor has no instructions: steps take many times as long"
    return warning(PRECISION, found, fix=f"set {FLOAT32}")


def check_compiler(focal_loss: str) -> Finding:
    """Look for the compiler of the C++ kernels, unless they were compiled ahead.

    Args:
        focal_loss: The form that is asked for; `kernel` insists on one.
    """
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
LOOKED_AT = (
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "pillow-simd",
    "intel-extension-for-pytorch",
    "oneccl_bind_pt",
)
BINDINGS = "oneccl_bind_pt"
IPEX = "intel-extension-for-pytorch"
OPENMP = ("libgomp", "libiomp5", "libomp")


def check_conflicts(*, engine: str, backend: str) -> list[Finding]:
    """Look at what is installed and loaded.

    Args:
        engine: `auto`, `torch` or `ipex`.
        backend: `gloo` or `ccl`, which exchanges gradients.
    """
    found = installed_versions(LOOKED_AT)
    problems = [
        *pillow_conflict(found, loaded=loaded_pillow()),
        *torchvision_conflict(found, required=requirements_of("torchvision")),
        *same_release(found, IPEX, is_used=engine == "ipex", instead="engine.name=torch"),
        *same_release(
            found, BINDINGS, is_used=backend == "ccl", instead="distributed.backend=gloo"
        ),
        *numpy_conflict(),
        *openmp_conflict(sorted(mapped_files(*OPENMP))),
    ]
    if problems:
        return problems
    names = ", ".join(f"{name} {version}" for name, version in found.items())
    return [ok(PACKAGES, f"{names}: none is known to disturb another")]


def loaded_pillow() -> str:
    """The version that Pillow's compiled part was built as, whatever packages are noted."""
    return str(features.version("pil") or Image.__version__)


def pillow_conflict(found: Mapping[str, str], *, loaded: str) -> list[Finding]:
    """Pillow and Pillow-SIMD are both the module PIL: the later one overwrites half of the first.

    Where Pillow-SIMD was put in by `make simd`, an empty `pillow …+simd` stands beside it.
    """
    pillow, simd = found.get("pillow", ""), found.get("pillow-simd", "")
    if simd and pillow and not pillow.endswith("+simd"):
        text = f"pillow {pillow} and pillow-simd {simd} are both installed, as one module PIL"
        return [warning(PACKAGES, text, fix="run `make pillow`, or `make simd`")]
    noted = simd or pillow
    if noted and loaded != noted:
        text = f"the module PIL is version {loaded}, and the package says {noted}: half replaced"
        return [warning(PACKAGES, text, fix="run `make pillow`")]
    return []


def requirements_of(package: str) -> Sequence[str]:
    """What a package says that it needs; nothing where it is not installed."""
    try:
        return requires(package) or []
    except PackageNotFoundError:
        return []


def torchvision_conflict(found: Mapping[str, str], *, required: Sequence[str]) -> list[Finding]:
    """Each torchvision works with one release of torch, or some; its own metadata name them."""
    torch_version = found.get("torch", "").partition("+")[0]
    for one in map(Requirement, required):
        if one.name == "torch" and torch_version and not one.specifier.contains(torch_version):
            text = f"torchvision {found.get('torchvision')} needs torch{one.specifier}, and there "
            return [failure(PACKAGES, f"{text}is {torch_version}", fix="run `make setup`")]
    return []


def same_release(
    found: Mapping[str, str], package: str, *, is_used: bool, instead: str
) -> list[Finding]:
    """Extensions of torch work with the release of their own number only."""
    own, of_torch = found.get(package, ""), found.get("torch", "")
    if not own or own.split(".")[:2] == of_torch.split(".")[:2]:
        return []
    text = f"{package} {own} was made for another torch than {of_torch}"
    if is_used:
        return [failure(PACKAGES, text, fix=f"install that of torch {of_torch}, or set {instead}")]
    return [ok(PACKAGES, f"{text}; it is not used")]


def numpy_conflict() -> list[Finding]:
    """torch and numpy share memory only if torch was built for this numpy's binary interface."""
    try:
        torch.from_numpy(np.zeros(1)).numpy()
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        return [
            failure(
                PACKAGES, f"torch does not take numpy's arrays: {reason}", fix="run `make setup`"
            )
        ]
    return []


def openmp_conflict(libraries: Sequence[Path]) -> list[Finding]:
    """Each loaded OpenMP library has threads of its own, which meet on the same cores.

    Intel's in the place of GNU's is meant: the dynamic linker takes it for both.
    """
    gnu = [one for one in libraries if one.name.startswith("libgomp")]
    if len(gnu) > 1:
        names = " and ".join(map(str, gnu))
        fix = "take out of LD_PRELOAD what brings the second one"
        return [warning(PACKAGES, f"two OpenMP libraries are loaded, {names}", fix=fix)]
    intel = [one for one in libraries if not one.name.startswith("libgomp")]
    if len(intel) > 1:
        names = " and ".join(map(str, intel))
        fix = "preload one of them alone"
        return [warning(PACKAGES, f"two OpenMP libraries are loaded, {names}", fix=fix)]
    return []


VERSIONS = "versions"
PINS = Path(__file__).resolve().parents[2] / "requirements.txt"
NOT_NEEDED = ("nvidia-", "triton")
"""CUDA's, which CPU-only builds of torch come without."""
NAMED = 4
FIX = "run `make setup`, or go on where you know that they work together"


def check_versions(pins: Path = PINS) -> Finding:
    """Hold every pinned package against what is installed."""
    if not pins.is_file():
        return ok(VERSIONS, f"{pins} is not there to compare with")
    wanted = read_pins(pins.read_text(encoding="utf-8"))
    found = installed_versions(wanted)
    others = differences(wanted, found)
    if not others:
        return ok(VERSIONS, f"{len(found)} packages, all as {pins.name} pins them")
    named = ", ".join(others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return warning(VERSIONS, f"not as {pins.name} pins them: {named}{more}", fix=FIX)


def read_pins(text: str) -> dict[str, str]:
    """Versions by name, of lines such as `numpy==2.4.6   # why`."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {name.strip(): version.strip() for name, _, version in pairs}


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What is missing or of another version, in words; a build's own mark (`+cpu`) is none."""
    words = []
    for name, version in wanted.items():
        if name not in found:
            if not name.startswith(NOT_NEEDED):
                words.append(f"{name} {version} is missing")
        elif found[name].partition("+")[0] != version.partition("+")[0]:
            words.append(f"{name} is {found[name]}, pinned {version}")
    return words


SHARED_MEMORY = "/dev/shm"
SHARED = Path("/dev/shm")
PAGE = 4096
AHEAD = 2
"""Batches that torch's DataLoader has each process load ahead."""
CHANNELS = 3
FIX_SIZE = "docker run --shm-size={} (or --ipc=host), or data.workers=0"


@dataclass(frozen=True, kw_only=True)
class LoadedBatches:
    """What the loading processes of a rank may have handed over at one time."""

    workers: int
    """Loading processes of the rank."""
    image_size: int
    """[pixels]"""
    batch_size: int
    evaluation_batch_size: int
    gradient_accumulation: int
    """Batches that a step holds at once."""

    @property
    def batch_bytes(self) -> int:
        """The larger of a training and an evaluation batch. [bytes]"""
        return bytes_of_batch(max(self.batch_size, self.evaluation_batch_size), self.image_size)

    @property
    def bytes(self) -> int:
        """All that wait or are in use, of training and of the evaluation that follows. [bytes]"""
        if not self.workers:
            return 0
        ahead = AHEAD * self.workers
        training = bytes_of_batch(self.batch_size, self.image_size)
        evaluation = bytes_of_batch(self.evaluation_batch_size, self.image_size)
        return (ahead + self.gradient_accumulation) * training + (ahead + 1) * evaluation

    @property
    def tensors(self) -> int:
        """Tensors in them, each of which keeps a file open in the training process."""
        if not self.workers:
            return 0
        ahead = AHEAD * self.workers
        training = tensors_of_batch(self.batch_size)
        evaluation = tensors_of_batch(self.evaluation_batch_size)
        return (ahead + self.gradient_accumulation) * training + (ahead + 1) * evaluation


def bytes_of_batch(images: int, image_size: int) -> int:
    """Pixels as they are loaded, uint8, and two small tensors of targets an image. [bytes]"""
    return images * (CHANNELS * image_size**2 + 2 * PAGE)


def tensors_of_batch(images: int) -> int:
    """The pixels' tensor, boxes and labels."""
    return 1 + 2 * images


def check_shared_memory(
    need: LoadedBatches, *, ranks: int, is_certain: bool, folder: Path = SHARED
) -> Finding:
    """Hold what loading processes need against what the mount has.

    Args:
        need: Of each rank.
        ranks: Of this host.
        is_certain: Whether the processes will load, as told; with data.workers=auto they may.
        folder: Where it is mounted.
    """
    if not need.workers:
        return ok(
            SHARED_MEMORY, "not needed: the training process loads images itself (data.workers=0)"
        )
    try:
        status = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        found = f"{need.workers} loading processes need it, and a file there fails: "
        fix = "mount a tmpfs there (docker: --shm-size=1g), or set data.workers=0"
        return failure(SHARED_MEMORY, f"{found}{error.strerror}", fix=fix)
    wanted = need.bytes * ranks
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    which = f"loading processes{of_ranks} hand over up to {amount(wanted)} at a time"
    have = f"{amount(free)} of {amount(size)} are free"
    fix = FIX_SIZE.format(rounded_up(2 * wanted))
    if free >= wanted:
        return ok(SHARED_MEMORY, f"{have}; {which}")
    if is_certain and size < need.batch_bytes:
        found = f"{have}, and one batch takes {amount(need.batch_bytes)}"
        return failure(SHARED_MEMORY, found, fix=fix)
    return warning(SHARED_MEMORY, f"{have}, and {which}", fix=fix)


def rounded_up(size: int) -> str:
    """A size as docker takes it, in whole powers of two: `256m`, `2g`."""
    megabytes = 64
    while megabytes < size / 2**20:
        megabytes *= 2
    return f"{megabytes // 1024}g" if megabytes >= 1024 else f"{megabytes}m"


OPEN_FILES = "open files"
OWN = 100
"""Files, sockets and pipes that a rank has open beside them."""


def check_open_files(tensors: int, *, limit: int | None = None) -> Finding:
    """Hold the open files of a rank against its limit.

    Args:
        tensors: That loading processes may have handed over, each a file.
        limit: Of a process; None: this one's.
    """
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ok(OPEN_FILES, "no limit")
    wanted = OWN + tensors
    if wanted <= limit:
        return ok(OPEN_FILES, f"{limit} are allowed, a rank has up to {wanted}")
    found = f"{limit} are allowed, and a rank may have {wanted}: loaded tensors are files"
    return warning(OPEN_FILES, found, fix=f"ulimit -n {2 * wanted}, or lower data.workers")


def check_launcher(
    ranks: Ranks, environment: Mapping[str, str], *, planned: int
) -> tuple[Finding, ...]:
    """Warn where a batch script of Slurm with several tasks runs the program without `srun`.

    Args:
        ranks: What started this process.
        environment: Its variables.
        planned: Ranks that this host will have.
    """
    tasks = environment.get("SLURM_NTASKS", "")
    if ranks.launcher != "none" or planned > 1 or not is_number(tasks) or int(tasks) < 2:
        return ()
    return (
        warning(
            "ranks",
            f"SLURM_NTASKS={tasks}, and this process trains alone: srun did not start it",
            fix=f"start {tasks} ranks with srun python train.py …, or mpirun -np {tasks}",
        ),
    )
