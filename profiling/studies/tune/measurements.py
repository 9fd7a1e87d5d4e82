"""What was measured of a host, in a file that the planner also reads on a laptop.

TODO-DOC A measurement that was stopped: what it has come to, for the command that goes on with it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from common.errors import InputError
from common.files import read_bytes, read_kept, write_whole
from profiling.bench.job import RankSteps
from profiling.studies.tune.model import AllReduceTime, Shape, StepTime
from profiling.studies.tune.probes import Probes


@dataclass(frozen=True, kw_only=True)
class Added:
    """What exchanging gradients added to the steps of several ranks on the host."""

    ranks: int
    batch_size: int
    share: float
    """Of a step without exchange; around 0 it may be negative."""


@dataclass(frozen=True, kw_only=True)
class BetweenHosts:
    """All-reduces between ranks on several hosts."""

    hosts: tuple[str, ...] = Field(min_length=2)
    """By name; a rank on each."""
    all_reduces: tuple[AllReduceTime, ...] = Field(min_length=2)
    over: str
    """How many hosts, and which backend, in words."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Of one host."""

    command: str
    """That measured it."""
    environment: Mapping[str, Any]
    """Processor, cores, packages, code."""
    cores: int = Field(gt=0)
    """That ranks may compute on."""
    sockets: int = Field(gt=0)
    shapes: tuple[Shape, ...] = Field(min_length=1)
    """That the host has the cores and the memory for."""
    data: str
    """As `--data` names it: `openimages`, or a configuration."""
    config: str
    overrides: tuple[str, ...]
    """What was trained, and what the winner's command trains."""
    images: int = Field(gt=0)
    """Of an epoch."""
    evaluated_images: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    """Images of a rank in a step that the configuration has."""
    every: int = Field(gt=0)
    """Epochs between two evaluations."""
    image_size: int
    """[pixels]"""
    classes: int
    precision: str
    compress: str
    """Of gradients: `none` or `bf16`."""
    gradient_bytes: int
    """Of one rank, as they travel."""
    last_bytes: int
    """Of the last bucket."""
    steps: tuple[StepTime, ...] = Field(min_length=2)
    added: tuple[Added, ...]
    all_reduces: tuple[AllReduceTime, ...]
    """Between ranks of this host, over its own sockets."""
    all_reduces_over: str
    """Which these were."""
    backward_share: float
    """Of a step."""
    data_share: float
    """Of a step, the most that ranks waited for data."""
    evaluation_seconds: float
    """Of an image, of one thread."""
    metric_seconds: float
    """COCO's metric of the whole validation split, and its files."""
    busy_cores: float
    """That other work kept busy meanwhile."""
    update_seconds: float | None = None
    """The optimizer's step over all weights, by one thread; None in plans from before."""
    between_hosts: BetweenHosts | None = None
    """None: was not measured."""
    probes: Probes | None = None
    """None: the epochs until the target are MLPerf's, or were not asked for yet."""


FINISHED = TypeAdapter(Measurements)


@dataclass(frozen=True, kw_only=True)
class JobsOfShape:
    """The jobs that have run of a shape."""

    shape: Shape
    jobs: tuple[tuple[RankSteps, ...], ...]
    """One of each round, in order."""


@dataclass(frozen=True, kw_only=True)
class PartialMeasurement:
    """What has been measured of a host until now."""

    command: str
    environment: Mapping[str, Any]
    """Processor, cores, packages."""
    data: str
    """As `--data` names it."""
    overrides: tuple[str, ...]
    """On top of its configuration."""
    question: Mapping[str, Any]
    """All else that the numbers depend on, but for the machine."""
    measured: tuple[Shape, ...]
    """What there is to measure."""
    shapes: tuple[Shape, ...]
    """That the host has the cores and the memory for."""
    jobs: tuple[JobsOfShape, ...] = ()
    all_reduces: tuple[AllReduceTime, ...] | None = None
    all_reduces_over: str = ""
    evaluation_seconds: float | None = None
    metric_seconds: float | None = None
    update_seconds: float | None = None
    unfinished: Literal[True] = True
    """Marks the file."""

    @property
    def done(self) -> int:
        """Jobs that have run."""
        return sum(len(one.jobs) for one in self.jobs)


UNFINISHED = TypeAdapter(PartialMeasurement)


def write_measurements(file: Path, measured: Measurements | PartialMeasurement) -> None:
    """Write them as JSON, in place of an earlier state.

    Raises:
        InputError: The file cannot be written there.
    """
    write_whole(file, json.dumps(asdict(measured), indent=1, ensure_ascii=False) + "\n")


def read_measurements(file: Path) -> Measurements | PartialMeasurement:
    """Read what `write_measurements` wrote.

    Raises:
        InputError: It is something else; names the file and the field.
    """
    schema: TypeAdapter[Any] = UNFINISHED if is_unfinished(file) else FINISHED
    found: Measurements | PartialMeasurement = read_kept(
        file,
        schema,
        wrong="is nothing that `python -m launch tune --plan` wrote",
        advice="move it away, or give another name",
    )
    return found


MAY_DIFFER = ("code", "kernel")
"""Between the jobs of one measurement, as between the rounds of an ablation."""


def is_unfinished(file: Path) -> bool:
    """Whether a file says of itself that it is; whatever else is wrong with it shows later."""
    try:
        content = json.loads(read_bytes(file))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("unfinished") is True


def require_same(file: Path, found: PartialMeasurement, fresh: PartialMeasurement) -> None:
    """Refuse to go on with what was measured of something else.

    Args:
        file: Where it was read from, for the message.
        found: What was measured until now.
        fresh: What would be measured here and now.

    Raises:
        InputError: Names the first thing that differs, as it was and as it is.
    """
    for before, now in (
        (found.environment, fresh.environment),
        (found.question, fresh.question),
    ):
        for name in {**before, **now}:
            if name not in MAY_DIFFER and before.get(name) != now.get(name):
                raise InputError(
                    f"{file}: its measurement was begun with {name} {before.get(name)}, here it is "
                    f"{now.get(name)}; go on where it began, move the file away, or give another "
                    "--plan"
                )
