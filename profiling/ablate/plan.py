"""What is going to be measured for an ablation, on this machine.

TODO-DOC What a variant takes and this machine has not, in words with what to do.

TODO-DOC Pillow-SIMD beside Pillow, for a process that is to have it in Pillow's place.
"""

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import InputError
from common.machine import BF16_FLAGS, bf16_flag, cpu_flags, fastest_precision
from data.decoding import DECODERS, fault_of
from launch.environment import ALLOCATORS, find
from launch.limits import read_allowance
from profiling.ablate.definition import Ablation, AblationVariant, Option, SizeName
from profiling.ablate.result import Definition, MeasuredVariant
from profiling.bench.variant import Variant, Workload, huge_pages_environment, huge_pages_remark

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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An ablation at a size, here."""

    name: str
    ablation: Ablation
    size: SizeName
    workload: Workload
    rounds: int
    warm_up: int
    contestants: Mapping[str, Variant]
    """Those that can run."""
    left_out: Mapping[str, str]
    """Why the others cannot, by name."""
    photos: str | None = None
    """Those that decoders read, see `Photos.words`."""

    @property
    def definition(self) -> Definition:
        """What a measurement of it depends on."""
        return {
            "workload": asdict(self.workload),
            "warm_up": self.warm_up,
            "settling": self.ablation.settling,
            "photos": self.photos,
            "variants": {
                name: described(one, self.ablation.variants[name])
                for name, one in self.contestants.items()
            },
        }


def plan_of(name: str, ablation: Ablation, *, size: SizeName, rounds: int | None = None) -> Plan:
    """Resolve an ablation; `rounds`: None takes the file's, or the usual number."""
    chosen = ablation.size(size)
    numbers = {field: getattr(chosen, field) or value for field, value in USUAL[size].items()}
    if chosen.warm_up is not None:
        numbers["warm_up"] = chosen.warm_up
    contestants, left_out = {}, {}
    for key, variant in ablation.variants.items():
        options = resolved({**ablation.options, **chosen.options, **variant.options})
        allocator = variant.allocator or ablation.allocator
        missing = lacking(variant, options, allocator=allocator)
        if missing is None:
            contestants[key] = contestant_of(key, ablation, variant, options=options)
        else:
            left_out[key] = missing
    for key in without_counterpart(ablation, left_out):
        contestants.pop(key, None)
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
        contestants=contestants,
        left_out=left_out,
    )


def without_counterpart(ablation: Ablation, left_out: Collection[str]) -> list[str]:
    """Variants in comparisons of which each has a side that cannot run."""
    pairs = [(one.change, one.baseline) for one in ablation.comparisons]
    compared = dict.fromkeys(name for pair in pairs for name in pair)
    useful = {name for pair in pairs if not set(pair) & set(left_out) for name in pair}
    return [name for name in compared if name not in useful]


def resolved(options: Mapping[str, Option]) -> dict[str, Option]:
    """With a precision of `auto` as this processor's."""
    found = dict(options)
    if found.get("precision") == "auto":
        found["precision"] = fastest_precision()
    return found


def contestant_of(
    name: str, ablation: Ablation, variant: AblationVariant, *, options: Mapping[str, Option]
) -> Variant:
    """A variant as benchmarks have them."""
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


def described(contestant: Variant, variant: AblationVariant) -> MeasuredVariant:
    """A contestant in plain values."""
    return {
        "recipe": contestant.recipe,
        "options": dict(contestant.options),
        "allocator": contestant.allocator,
        "pinned": is_pinned(contestant.recipe),
        "huge_pages": variant.huge_pages,
        "memory": variant.memory,
        "pillow_simd": variant.pillow_simd,
    }


def lacking(
    variant: AblationVariant, options: Mapping[str, Option], *, allocator: str
) -> str | None:
    """The first thing that is missing here for a variant; None where all is there.

    Args:
        variant: What it says of its needs.
        options: All that its recipe is given.
        allocator: Its memory policy.
    """
    return (
        lacking_processor(variant)
        or lacking_packages(variant, options)
        or lacking_memory(variant, allocator)
        or lacking_cores(options)
    )


def lacking_processor(variant: AblationVariant) -> str | None:
    """Instructions."""
    if "bf16" in variant.needs and bf16_flag(cpu_flags()) is None:
        return f"the processor has no instructions for BF16 ({' or '.join(BF16_FLAGS[:2])})"
    return None


def lacking_packages(variant: AblationVariant, options: Mapping[str, Option]) -> str | None:
    """Python packages."""
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
    """Allocators, huge pages, memory nodes."""
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
    """CPUs for the ranks and threads of a job."""
    wanted = int(options.get("ranks", 1)) * int(options.get("threads", 1))
    cores = len(os.sched_getaffinity(0))
    if wanted > cores:
        return f"takes more cores than the {cores} that this process may use"
    return None


def pillow_simd_folder() -> Path | None:
    """Where `./setup.sh simd-beside` has put it; None where it has not."""
    folder = Path(sys.prefix) / "simd-beside"
    return folder if (folder / "PIL").is_dir() else None
