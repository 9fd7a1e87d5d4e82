"""A way to do the benchmarked thing, under a name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retinanet.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """What a worker process is made from."""

    name: str
    about: str
    """For `--help`: what it is, in a few words."""
    recipe: str
    """Module whose `prepare(workload, **options)` builds it; see profiling.bench.recipe."""
    allocator: str = "tuned"
    """The memory policy that its process sets before torch is loaded."""
    memory: str | None = None
    """Where its memory lies, as numactl names it; None: near the core that first writes it."""
    pinned: bool = False
    """Whether its threads are bound to cores as those of a rank of train.py; its recipe then takes
    `main_cpus`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its process, beside those of this one."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    package: str | None = None
    """Python package that it needs and that need not be installed."""
    needs_intel_openmp: bool = False
    """Whether it is left out where Intel's OpenMP is not installed, which goes before torch's own
    in the process of every contestant that is `pinned`."""
    cache_variable: str | None = None
    """Variable that names a folder for files of its process, removed when that ends."""
    by_default: bool = True
    """Whether it runs when no contestants are named."""


def choose(contestants: Sequence[Contestant], names: str | None) -> list[Contestant]:
    """The contestants of a comma-separated list, in its order.

    None takes those that run by default; `all` takes all.

    Raises:
        InputError: A name is not known, or given twice.
    """
    if names is None:
        return [contestant for contestant in contestants if contestant.by_default]
    if names == "all":
        return list(contestants)
    known = {contestant.name: contestant for contestant in contestants}
    wanted = names.split(",")
    for place, name in enumerate(wanted):
        if name not in known:
            raise InputError(
                f"--contestants: {name!r} is not known; choose from {', '.join(known)}"
            )
        if name in wanted[:place]:
            raise InputError(f"--contestants: {name!r} is given twice; name it once")
    return [known[name] for name in wanted]
