"""What was measured of an ablation: a JSON file that says on what, with what, and by which command.

It is written anew after every round, so that an interrupted measurement goes on from there.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from common.errors import InputError
from common.files import read_kept, write_whole
from profiling.ablate.definition import SizeName
from profiling.bench.variant import Run

RoundOfRuns = Mapping[str, Run]
"""A run of every variant, by name."""


class MeasuredVariant(TypedDict):
    """What ran under a variant's name, in values that are the same on every machine."""

    recipe: str
    options: dict[str, Any]
    allocator: str
    pinned: bool
    huge_pages: bool
    memory: str | None
    pillow_simd: bool


def memory_policy(variant: MeasuredVariant) -> str:
    """Its allocator, and huge pages where it has them."""
    return variant["allocator"] + (", huge pages" if variant["huge_pages"] else "")


class Definition(TypedDict):
    """What a measurement depends on, but for the machine: for one that goes on later."""

    workload: dict[str, int]
    warm_up: int
    settling: int
    photos: str | None
    """Those that decoders read, see `Photos.words`; None where no variant decodes."""
    variants: dict[str, MeasuredVariant]


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
    """One ablation's measurement, maybe not at its end."""

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
        """One of a variant's quantities, by round; empty where it was not measured."""
        runs = [of_round[variant] for of_round in self.rounds if variant in of_round]
        found = [quantity_of(run, quantity) for run in runs]
        return [value for value in found if value is not None]


def quantity_of(run: Run, quantity: str) -> float | None:
    """`seconds`, `page_faults`, `peak_rss_mb`, or one of the recipe's details."""
    if quantity in ("seconds", "page_faults", "peak_rss_mb"):
        return float(getattr(run, quantity))
    return run.details.get(quantity)


def with_round(result: Result, runs: RoundOfRuns, *, ended: str) -> Result:
    """The result, one round longer."""
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
    """Where results go unless told otherwise."""
    return Path("runs", "ablations", size)


def result_file(folder: Path, name: str) -> Path:
    """Of an ablation."""
    return folder / name / "result.json"


def where(size: SizeName, *, out: Path | None) -> list[str]:
    """The options that name a folder of results."""
    quick = ["--quick"] if size == "quick" else []
    return [*quick, *(["--out", str(out)] if out else [])]


def command_of(name: str, size: SizeName, *, out: Path | None, photos: Path | None) -> str:
    """What measures one ablation."""
    pictures = ["--photos", str(photos)] if photos else []
    words = ["python", "-m", "profiling", "ablate", "run", name, *where(size, out=out), *pictures]
    return shlex.join(words)
