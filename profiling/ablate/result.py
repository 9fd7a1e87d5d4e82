"""The plan of an ablation on this machine, its result, and the result file.

`resolve_plan` selects the variants of an ablation that can run here, the workload and the number
of rounds, with reasons for other variants. A `Result` is stored as JSON with the machine, the
packages and the command. It is written after every round, so that an interrupted measurement can
continue.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from common.errors import InputError
from common.machine import BF16_FLAGS, bf16_flag, cpu_flags, fastest_precision
from common.options import flag, option
from common.program import command_words
from common.stored import read_stored
from data.decoding import DECODERS, decoder_fault
from launch.environment import ALLOCATORS, find
from launch.limits import read_allowance
from profiling.ablate.definition import Ablation, AblationVariant, Option, SizeName
from profiling.bench.interpreters import interpreter_with_ipex
from profiling.bench.variant import (
    Run,
    Variant,
    Workload,
    huge_pages_environment,
    huge_pages_remark,
)

USUAL = {
    "quick": {"image_size": 320, "images": 1, "classes": 264, "rounds": 8, "warm_up": 2},
    "full": {"image_size": 800, "images": 2, "classes": 264, "rounds": 5, "warm_up": 2},
}
JOBS = "mpirun"  # The recipe of variants that are whole jobs
READS_PHOTOS = "data.bench.recipes."  # Begins the names of recipes that decode
PINNED = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
"""A core for each thread, with every OpenMP: where the kernel chooses, two threads that wake often
share a core for 10 ms, which is longer than our focal loss takes."""


class MeasuredVariant(TypedDict):
    """A variant as it ran, in values that are the same on every machine."""

    recipe: str
    options: dict[str, Any]
    allocator: str
    pinned: bool
    huge_pages: bool
    memory: str | None
    pillow_simd: bool
    versions: NotRequired[dict[str, str]]
    """Of Python, torch and IPEX, where it ran in another environment than the others."""


class Definition(TypedDict):
    """The conditions of a measurement except the machine, which must be equal to continue it."""

    workload: dict[str, int]
    warm_up: int
    settling: int
    photos: str | None
    """Photos that decoders read, see `Photos.describe`; None where no variant decodes."""
    variants: dict[str, MeasuredVariant]


def memory_policy(variant: MeasuredVariant) -> str:
    """Return the allocator, and whether huge pages are used."""
    return variant["allocator"] + (", huge pages" if variant["huge_pages"] else "")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The measurement of an ablation at a size, on this machine."""

    name: str
    ablation: Ablation
    size: SizeName
    workload: Workload
    rounds: int
    warm_up: int
    variants: Mapping[str, Variant]  # The variants that can run
    left_out: Mapping[str, str]  # Why the others cannot, by name
    photos: str | None = None  # Photos that decoders read, see `Photos.describe`

    @property
    def definition(self) -> Definition:
        """Return the conditions of a measurement of this plan."""
        variants: dict[str, MeasuredVariant] = {}
        for name, measured in self.variants.items():
            variant = self.ablation.variants[name]
            variants[name] = {
                "recipe": measured.recipe,
                "options": dict(measured.options),
                "allocator": measured.allocator,
                "pinned": is_pinned(measured.recipe),
                "huge_pages": variant.huge_pages,
                "memory": variant.memory,
                "pillow_simd": variant.pillow_simd,
            }
            if measured.interpreter is not None:
                variants[name]["versions"] = dict(measured.versions)
        return {
            "workload": asdict(self.workload),
            "warm_up": self.warm_up,
            "settling": self.ablation.settling,
            "photos": self.photos,
            "variants": variants,
        }


def resolve_plan(
    name: str, ablation: Ablation, *, size: SizeName, rounds: int | None = None
) -> Plan:
    """Resolve an ablation; `rounds`: None takes the file's, or the usual number."""
    chosen = ablation.quick if size == "quick" else ablation.full
    numbers = {field: getattr(chosen, field) or value for field, value in USUAL[size].items()}
    # No warm-up at all is a choice: 0 must not become the default.
    warm_up = numbers["warm_up"] if chosen.warm_up is None else chosen.warm_up
    variants, left_out = {}, {}
    for key, variant in ablation.variants.items():
        options = {**ablation.options, **chosen.options, **variant.options}
        if options.get("precision") == "auto":
            options["precision"] = fastest_precision()
        allocator = variant.allocator or ablation.allocator
        if missing := next(lacking(variant, options, allocator=allocator), None):
            left_out[key] = missing
        else:
            variants[key] = benchmark_variant(key, ablation, variant, options=options)
    # Variants whose comparisons each have a side that cannot run are of no use.
    pairs = [(comparison.change, comparison.baseline) for comparison in ablation.comparisons]
    useful = {key for pair in pairs if not set(pair) & left_out.keys() for key in pair}
    for key in dict.fromkeys(key for pair in pairs for key in pair if key not in useful):
        variants.pop(key, None)
        left_out.setdefault(key, "none of the variants that it is compared with can run here")
    return Plan(
        name=name,
        ablation=ablation,
        size=size,
        workload=Workload(**{name: numbers[name] for name in ("images", "image_size", "classes")}),
        rounds=rounds or numbers["rounds"],
        warm_up=warm_up,
        variants=variants,
        left_out=left_out,
    )


def benchmark_variant(
    name: str, ablation: Ablation, variant: AblationVariant, *, options: Mapping[str, Option]
) -> Variant:
    """Return an ablation's variant as a benchmark has it."""
    recipe = variant.recipe or ablation.recipe
    environment = dict(PINNED) if is_pinned(recipe) else {}
    if variant.huge_pages:
        environment |= huge_pages_environment()
    if variant.pillow_simd:
        # PYTHONPATH comes before site-packages, where Pillow is.
        environment["PYTHONPATH"] = str(pillow_simd_folder())
    return Variant(
        name=name,
        about=variant.about,
        recipe=recipe,
        allocator=variant.allocator or ablation.allocator,
        memory=variant.memory,
        environment=environment,
        options=dict(options),
        interpreter=interpreter_with_ipex() if "ipex" in variant.needs else None,
    )


def is_pinned(recipe: str) -> bool:
    """Return whether its threads are OpenMP's; jobs pin their ranks, decoders have one thread."""
    return recipe != JOBS and not recipe.startswith(READS_PHOTOS)


def lacking(
    variant: AblationVariant, options: Mapping[str, Option], *, allocator: str
) -> Iterator[str]:
    """Yield instructions, packages, memory and cores that a variant needs and that are missing.

    `options` are all that its recipe is given, `allocator` is its memory policy.
    """
    if "bf16" in variant.needs and bf16_flag(cpu_flags()) is None:
        yield f"the processor has no instructions for BF16 ({' or '.join(BF16_FLAGS)})"
    if "ipex" in variant.needs:
        try:
            interpreter_with_ipex()
        except InputError as error:
            yield str(error)
    decoder = options.get("decoder")
    if decoder in DECODERS and (fault := decoder_fault(str(decoder))) is not None:
        yield f"{decoder} {fault}"
    if variant.pillow_simd and pillow_simd_folder() is None:
        yield "Pillow-SIMD is not built; docs/ablations/README.md has the command"
    library = ALLOCATORS.get(allocator)
    if library is not None and find(library) is None:
        yield f"{allocator} is not installed (apt-get install {library.package})"
    if variant.huge_pages and (remark := huge_pages_remark()):
        yield remark.removeprefix("--huge-pages: no effect, ")
    nodes = len(read_allowance().memory_nodes)
    if variant.memory is not None and nodes < 2:
        yield f"requires two memory nodes (two sockets); this machine has {max(nodes, 1)}"
    cores = len(os.sched_getaffinity(0))
    if int(options.get("ranks", 1)) * int(options.get("threads", 1)) > cores:
        yield f"requires more than the {cores} cores available to this process"


def pillow_simd_folder() -> Path | None:
    """Return the folder beside Pillow that has Pillow-SIMD; None if it is not installed there.

    A process that has this folder on its path has Pillow-SIMD in Pillow's place.
    """
    folder = Path(sys.prefix) / "simd-beside"
    return folder if (folder / "PIL").is_dir() else None


RoundOfRuns = Mapping[str, Run]  # A run of every variant, by name


@dataclass(frozen=True, kw_only=True)
class Result:
    """One ablation's measurement, which may be unfinished."""

    ablation: str
    size: SizeName
    command: str  # The command that continues or repeats it
    environment: Mapping[str, Any]  # Processor, cores, kernel, packages, code
    definition: Definition
    left_out: Mapping[str, str]  # Variants that could not run here, and why
    rounds_wanted: int
    rounds: tuple[RoundOfRuns, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By variant, what holds for all its runs."""
    calls: Mapping[str, Any] | None = None
    """The differences between two variants' oneDNN logs, see `measure.compare_calls`."""
    busy_cores: tuple[float, ...] = ()
    """Cores that other work kept busy, for each time that it was measured."""
    began: str = ""
    ended: str = ""  # Times of day, in UTC

    @property
    def is_complete(self) -> bool:
        """Whether all rounds are measured, or no variant can run here."""
        return len(self.rounds) >= self.rounds_wanted or not self.definition["variants"]

    @property
    def torch_versions(self) -> dict[str, str]:
        """The version of torch by variant if they differ; else nothing."""
        usual = {"torch": str(self.environment.get("torch", ""))}
        variants = self.definition["variants"].items()
        versions = {name: variant.get("versions", usual)["torch"] for name, variant in variants}
        return versions if len(set(versions.values())) > 1 else {}

    def values(self, variant: str, quantity: str) -> list[float]:
        """Return one of a variant's quantities, by round; empty where it was not measured.

        It is `seconds`, `page_faults`, `peak_rss_mb`, or one of the recipe's details.
        """
        runs = [runs[variant] for runs in self.rounds if variant in runs]
        if quantity in ("seconds", "page_faults", "peak_rss_mb"):
            return [float(getattr(run, quantity)) for run in runs]
        return [run.details[quantity] for run in runs if run.details.get(quantity) is not None]


def read_result(file: Path) -> Result:
    """Read a result that was written as JSON.

    Raises:
        InputError: It is something else; names the file.
    """
    advice = "move it, or give another --out"
    result = read_stored(
        file, Result, wrong="is not a result of `retinanet profile ablate run`", advice=advice
    )
    # Ratios are computed in each round, which needs all variants.
    for runs in result.rounds:
        if runs.keys() != result.definition["variants"].keys():
            raise InputError(f"{file}: a round does not have all variants; {advice}")
    return result


@dataclass(frozen=True, kw_only=True)
class Place:
    """The options of all commands about results: their size, and their folder."""

    quick: bool = flag("320x320 instead of 800x800, one image per step")
    out: Path | None = option(
        "results folder (default: runs/ablations/quick or runs/ablations/full)",
        default=None,
        metavar="DIR",
    )

    @property
    def size(self) -> SizeName:
        """Return the size of the images, by its name."""
        return "quick" if self.quick else "full"

    @property
    def folder(self) -> Path:
        """Return the folder of the results."""
        return self.out or Path("runs", "ablations", self.size)

    def file(self, name: str) -> Path:
        """Return the file of an ablation's result."""
        return self.folder / name / "result.json"

    def command(self, *words: str, photos: Path | None = None) -> str:
        """Return a command such as `ablate run NAME` for this folder."""
        options = ["--quick"] * self.quick + (["--out", str(self.out)] if self.out else [])
        options += ["--photos", str(photos)] if photos else []
        return shlex.join([*command_words("profiling"), "ablate", *words, *options])
