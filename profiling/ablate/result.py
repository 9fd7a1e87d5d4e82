"""What is measured of an ablation on this machine, and the file that keeps it.

`plan_of` resolves an ablation's file: which variants can run here, on what workload, how often, and
why others cannot. A `Result` is JSON that says on what, with what and by which command it was
measured. It is written anew after every round, so that an interrupted measurement goes on from
there.
"""

import json
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from common.errors import InputError
from common.files import read_kept, write_whole
from common.machine import BF16_FLAGS, bf16_flag, cpu_flags, fastest_precision
from data.decoding import DECODERS, fault_of
from launch.environment import ALLOCATORS, find
from launch.limits import read_allowance
from profiling.ablate.definition import Ablation, AblationVariant, Option, SizeName
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
JOBS = "mpirun"
"""The recipe of variants that are whole jobs."""
READS_PHOTOS = "data.bench.recipes."
"""Begins the names of recipes that decode."""
PINNED = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
"""A core for each thread, with every OpenMP: where the kernel chooses, two threads that wake often
share a core for 10 ms, which is longer than our focal loss takes."""


class MeasuredVariant(TypedDict):
    """What ran under a variant's name, in values that are the same on every machine."""

    recipe: str
    options: dict[str, Any]
    allocator: str
    pinned: bool
    huge_pages: bool
    memory: str | None
    pillow_simd: bool


class Definition(TypedDict):
    """What a measurement depends on, but for the machine: for one that goes on later."""

    workload: dict[str, int]
    warm_up: int
    settling: int
    photos: str | None
    """Those that decoders read, see `Photos.describe`; None where no variant decodes."""
    variants: dict[str, MeasuredVariant]


def memory_policy(variant: MeasuredVariant) -> str:
    """Return its allocator, and huge pages where it has them."""
    return variant["allocator"] + (", huge pages" if variant["huge_pages"] else "")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured of an ablation at a size, on this machine."""

    name: str
    ablation: Ablation
    size: SizeName
    workload: Workload
    rounds: int
    warm_up: int
    variants: Mapping[str, Variant]
    """Those that can run."""
    left_out: Mapping[str, str]
    """Why the others cannot, by name."""
    photos: str | None = None
    """Those that decoders read, see `Photos.describe`."""

    @property
    def definition(self) -> Definition:
        """Return what a measurement of it depends on."""
        return {
            "workload": asdict(self.workload),
            "warm_up": self.warm_up,
            "settling": self.ablation.settling,
            "photos": self.photos,
            "variants": {
                name: described(one, self.ablation.variants[name])
                for name, one in self.variants.items()
            },
        }


def plan_of(name: str, ablation: Ablation, *, size: SizeName, rounds: int | None = None) -> Plan:
    """Resolve an ablation; `rounds`: None takes the file's, or the usual number."""
    chosen = ablation.size(size)
    numbers = {field: getattr(chosen, field) or value for field, value in USUAL[size].items()}
    if chosen.warm_up is not None:
        numbers["warm_up"] = chosen.warm_up
    variants, left_out = {}, {}
    for key, variant in ablation.variants.items():
        options = resolved({**ablation.options, **chosen.options, **variant.options})
        allocator = variant.allocator or ablation.allocator
        missing = lacking(variant, options, allocator=allocator)
        if missing is None:
            variants[key] = benchmark_variant(key, ablation, variant, options=options)
        else:
            left_out[key] = missing
    for key in without_counterpart(ablation, left_out):
        variants.pop(key, None)
        left_out.setdefault(key, "nothing that it is held against can run here")
    return Plan(
        name=name,
        ablation=ablation,
        size=size,
        workload=Workload(
            images=numbers["images"],
            image_size=numbers["image_size"],
            classes=numbers["classes"],
        ),
        rounds=rounds or numbers["rounds"],
        warm_up=numbers["warm_up"],
        variants=variants,
        left_out=left_out,
    )


def without_counterpart(ablation: Ablation, left_out: Collection[str]) -> list[str]:
    """Return the variants whose comparisons each have a side that cannot run."""
    pairs = [(one.change, one.baseline) for one in ablation.comparisons]
    compared = dict.fromkeys(name for pair in pairs for name in pair)
    useful = {name for pair in pairs if not set(pair) & set(left_out) for name in pair}
    return [name for name in compared if name not in useful]


def resolved(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return options with this processor's precision in place of `auto`."""
    found = dict(options)
    if found.get("precision") == "auto":
        found["precision"] = fastest_precision()
    return found


def benchmark_variant(
    name: str, ablation: Ablation, variant: AblationVariant, *, options: Mapping[str, Option]
) -> Variant:
    """Return an ablation's variant as a benchmark has it."""
    recipe = variant.recipe or ablation.recipe
    environment = dict(PINNED) if is_pinned(recipe) else {}
    if variant.huge_pages:
        environment |= huge_pages_environment()
    if variant.pillow_simd:
        environment["PYTHONPATH"] = str(pillow_simd_folder())
    return Variant(
        name=name,
        about=variant.about,
        recipe=recipe,
        allocator=variant.allocator or ablation.allocator,
        memory=variant.memory,
        environment=environment,
        options=dict(options),
    )


def is_pinned(recipe: str) -> bool:
    """Whether its threads are OpenMP's; jobs pin their ranks themselves, decoders have one."""
    return recipe != JOBS and not recipe.startswith(READS_PHOTOS)


def described(measured: Variant, variant: AblationVariant) -> MeasuredVariant:
    """Return what runs under a variant's name in plain values."""
    return {
        "recipe": measured.recipe,
        "options": dict(measured.options),
        "allocator": measured.allocator,
        "pinned": is_pinned(measured.recipe),
        "huge_pages": variant.huge_pages,
        "memory": variant.memory,
        "pillow_simd": variant.pillow_simd,
    }


def lacking(
    variant: AblationVariant, options: Mapping[str, Option], *, allocator: str
) -> str | None:
    """Return the first thing that is missing here for a variant; None where all is there.

    Args:
        variant: Its needs.
        options: All that its recipe is given.
        allocator: Its memory policy.
    """
    if "bf16" in variant.needs and bf16_flag(cpu_flags()) is None:
        return f"the processor has no instructions for BF16 ({' or '.join(BF16_FLAGS[:2])})"
    return (
        lacking_packages(variant, options)
        or lacking_memory(variant, allocator)
        or lacking_cores(options)
    )


def lacking_packages(variant: AblationVariant, options: Mapping[str, Option]) -> str | None:
    """Return which package or decoder a variant lacks."""
    if "ipex" in variant.needs:
        from retinanet.engine.engines import require_ipex  # noqa: PLC0415

        try:
            require_ipex()
        except InputError as error:
            return str(error).removeprefix("engine.name: ").split(", or set")[0]
    decoder = options.get("decoder")
    if decoder in DECODERS:
        fault = fault_of(str(decoder))
        if fault is not None:
            return f"{decoder} {fault}"
    if variant.pillow_simd and pillow_simd_folder() is None:
        return "Pillow-SIMD is not built; run `./setup.sh simd-beside`"
    return None


def lacking_memory(variant: AblationVariant, allocator: str) -> str | None:
    """Return which allocator, huge pages or memory nodes a variant lacks."""
    library = ALLOCATORS.get(allocator)
    if library is not None and find(library) is None:
        return f"{allocator} is not installed (apt-get install {library.package})"
    if variant.huge_pages:
        remark = huge_pages_remark()
        if remark:
            return remark.removeprefix("--huge-pages: no effect, ")
    nodes = len(read_allowance().memory_nodes)
    if variant.memory is not None and nodes < 2:
        return f"takes two memory nodes (a second socket), and here is {max(nodes, 1)}"
    return None


def lacking_cores(options: Mapping[str, Option]) -> str | None:
    """Return that the ranks and threads of a job take more cores than there are."""
    wanted = int(options.get("ranks", 1)) * int(options.get("threads", 1))
    cores = len(os.sched_getaffinity(0))
    if wanted > cores:
        return f"takes more cores than the {cores} that this process may use"
    return None


def pillow_simd_folder() -> Path | None:
    """Return where `./setup.sh simd-beside` has put Pillow-SIMD; None where it has not.

    A process that has this folder on its path has Pillow-SIMD in Pillow's place.
    """
    folder = Path(sys.prefix) / "simd-beside"
    return folder if (folder / "PIL").is_dir() else None


RoundOfRuns = Mapping[str, Run]
"""A run of every variant, by name."""


class Call(TypedDict):
    """A question to oneDNN that one variant asks more often."""

    kind: str
    direction: str
    shape: str
    extra_calls: float
    extra_ms: float


class KindOfCalls(TypedDict):
    """All calls of a kind, of both variants."""

    kind: str
    first_calls: float
    second_calls: float
    first_ms: float
    second_ms: float


class ComparedCalls(TypedDict):
    """What comparing two variants' oneDNN logs has shown, see `profiling.ablate.measure`."""

    first: str
    second: str
    logs: list[str]
    kinds: list[KindOfCalls]
    only_one: list[Call]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One ablation's measurement, which may be unfinished."""

    ablation: str
    size: SizeName
    command: str
    """That goes on with it, or repeats it."""
    environment: Mapping[str, Any]
    """Processor, cores, kernel, packages, code."""
    definition: Definition
    left_out: Mapping[str, str]
    """Variants that could not run here, and why."""
    rounds_wanted: int
    rounds: tuple[RoundOfRuns, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of variants, what holds for all their runs."""
    calls: ComparedCalls | None = None
    busy_cores: tuple[float, ...] = ()
    """Cores that other work kept busy, for each time that it was measured."""
    began: str = ""
    ended: str = ""
    """Times of day, in UTC."""

    @property
    def is_complete(self) -> bool:
        """Whether all rounds are there; where nothing can run here, none are wanted."""
        return len(self.rounds) >= self.rounds_wanted or not self.definition["variants"]

    def values(self, variant: str, quantity: str) -> list[float]:
        """Return one of a variant's quantities, by round; empty where it was not measured."""
        runs = [runs[variant] for runs in self.rounds if variant in runs]
        values = [quantity_of(run, quantity) for run in runs]
        return [value for value in values if value is not None]


def quantity_of(run: Run, quantity: str) -> float | None:
    """Return `seconds`, `page_faults`, `peak_rss_mb`, or one of the recipe's details."""
    if quantity in ("seconds", "page_faults", "peak_rss_mb"):
        return float(getattr(run, quantity))
    return run.details.get(quantity)


def with_round(result: Result, runs: RoundOfRuns, *, ended: str) -> Result:
    """Return the result with one more round."""
    return replace(result, rounds=(*result.rounds, runs), ended=ended)


def write_result(file: Path, result: Result) -> None:
    """Write it in place of an earlier state.

    Raises:
        InputError: It cannot be written there.
    """
    content = asdict(result)
    content["rounds"] = [
        {name: asdict(run) for name, run in of_round.items()} for of_round in result.rounds
    ]
    write_whole(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_result(file: Path) -> Result:
    """Read what `write_result` wrote.

    Raises:
        InputError: It is something else; names the file.
    """
    result = read_kept(
        file,
        SCHEMA,
        wrong="is no result of `python -m profiling ablate run`",
        advice="move it away, or give another --out",
    )
    for of_round in result.rounds:
        if of_round.keys() != result.definition["variants"].keys():
            raise InputError(f"{file}: a round lacks variants; move it away, or give another --out")
    return result


SCHEMA = TypeAdapter(Result)


def default_folder(size: SizeName) -> Path:
    """Return where results go unless an option says otherwise."""
    return Path("runs", "ablations", size)


def result_file(folder: Path, name: str) -> Path:
    """Return the file of an ablation's result."""
    return folder / name / "result.json"


def where(size: SizeName, *, out: Path | None) -> list[str]:
    """Return the options that name a folder of results."""
    quick = ["--quick"] if size == "quick" else []
    return [*quick, *(["--out", str(out)] if out else [])]


def command_of(name: str, size: SizeName, *, out: Path | None, photos: Path | None) -> str:
    """Return the command that measures one ablation."""
    pictures = ["--photos", str(photos)] if photos else []
    words = ["python", "-m", "profiling", "ablate", "run", name, *where(size, out=out), *pictures]
    return shlex.join(words)
