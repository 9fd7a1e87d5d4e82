"""What is going to be measured for an ablation, on this machine."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

from profiling.ablate.ablation import Ablation, Option, SizeName, Variant
from profiling.ablate.lacks import lacking
from profiling.ablate.pillow_simd import pillow_simd_folder
from profiling.ablate.result import Definition, MeasuredVariant
from profiling.bench.contestant import Contestant
from profiling.bench.workload import Workload
from profiling.huge_pages import huge_pages_environment
from retinanet.processor import fastest_precision

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
    contestants: Mapping[str, Contestant]
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
    name: str, ablation: Ablation, variant: Variant, *, options: Mapping[str, Option]
) -> Contestant:
    """A variant as benchmarks have them."""
    recipe = variant.recipe or ablation.recipe
    environment = dict(PINNED) if is_pinned(recipe) else {}
    if variant.huge_pages:
        environment |= huge_pages_environment()
    if variant.pillow_simd:
        environment["PYTHONPATH"] = str(pillow_simd_folder())
    return Contestant(
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


def described(contestant: Contestant, variant: Variant) -> MeasuredVariant:
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
