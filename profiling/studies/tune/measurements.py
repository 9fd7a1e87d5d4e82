"""What probe runs have told: short trainings at several global batch sizes until a target.

MLPerf's points hold for OpenImages. On other data `train.py` itself is run until a target, at each
global batch size from several seeds, and the evaluations of these runs are kept.

TODO-DOC What was measured of a host, in a file that the planner also reads on a laptop.

TODO-DOC A measurement that was stopped: what it has come to, for the command that goes on with it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from common.errors import InputError
from common.files import read_bytes, read_kept, write_whole
from profiling.bench.job import RankSteps
from profiling.studies.tune.model import AllReduceTime, EpochsModel, Runs, Shape, StepTime


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation of a training."""

    epoch: float
    """Epochs until then."""
    score: float
    """mAP, IoU 0.50:0.95."""


@dataclass(frozen=True, kw_only=True)
class ProbeRun:
    """One training."""

    batch_size: int = Field(gt=0)
    """Images in a step, over all that it was made of."""
    seed: int
    evaluations: tuple[Evaluated, ...]
    """In order."""
    is_over: bool
    """Whether it has trained all its epochs; else it ended where it reached its target."""
    seconds: float
    """That the last command which ran it took."""

    @property
    def name(self) -> str:
        """In a line's words."""
        return f"global batch {self.batch_size}, seed {self.seed}"

    @property
    def best(self) -> float:
        """The highest mAP."""
        return max((one.score for one in self.evaluations), default=0.0)

    def epochs_until(self, target: float) -> float:
        """Where the straight line between two evaluations crosses it; infinite: nowhere."""
        before = Evaluated(epoch=0.0, score=0.0)
        for one in self.evaluations:
            if one.score >= target:
                share = (target - before.score) / (one.score - before.score)
                return before.epoch + share * (one.epoch - before.epoch)
            before = one
        return math.inf

    def answers(self, target: float) -> bool:
        """Whether more training would tell no more."""
        return self.is_over or self.best >= target


@dataclass(frozen=True, kw_only=True)
class RateRule:
    """The learning rate of a global batch size."""

    rate: float = Field(gt=0)
    """The configuration's."""
    batch_size: int = Field(gt=0)
    """That it is for."""
    is_linear: bool
    """Whether it grows as the batch does, as SGD's; else as its square root, as Adam's."""

    def scaled(self, batch_size: int) -> float:
        """The rate for another batch.

        As its size (Goyal et al. 2017, section 2.1), or as the root of it (Krizhevsky 2014, section
        5), which keeps the variance of an update.
        """
        times = batch_size / self.batch_size
        return self.rate * (times if self.is_linear else math.sqrt(times))

    @property
    def words(self) -> str:
        """In a sentence."""
        grows = "in proportion to" if self.is_linear else "by the square root of"
        return f"learning rate {self.rate:g} at {self.batch_size}, {grows} the batch"


@dataclass(frozen=True, kw_only=True)
class Probes:
    """All trainings of one configuration, and what they were for."""

    target_map: float = Field(gt=0, le=1)
    batch_sizes: tuple[int, ...] = Field(min_length=2)
    """Global ones, ascending."""
    seeds: int = Field(gt=0)
    """Trainings of each."""
    rule: RateRule
    runs: tuple[ProbeRun, ...] = ()
    """Also of earlier commands with other batch sizes and targets."""

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """Batch size and seed of each training, seed after seed: an early end leaves all sizes."""
        return [(size, seed) for seed in range(self.seeds) for size in self.batch_sizes]

    @property
    def asked(self) -> list[ProbeRun]:
        """The runs that are wanted and there, in that order."""
        by_name = {(one.batch_size, one.seed): one for one in self.runs}
        return [by_name[one] for one in self.wanted if one in by_name]

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Those wanted that do not answer yet."""
        known = {(one.batch_size, one.seed) for one in self.runs if one.answers(self.target_map)}
        return [one for one in self.wanted if one not in known]


def epochs_of_probes(probes: Probes, *, config: str) -> EpochsModel:
    """Of all batch sizes that were asked for; each wanted run is there.

    Raises:
        InputError: One did not reach the target; names it, and a target that all have reached.
    """
    require_reached(probes)
    found: dict[int, list[float]] = {}
    for one in probes.asked:
        found.setdefault(one.batch_size, []).append(one.epochs_until(probes.target_map))
    return EpochsModel(
        runs=tuple(
            Runs(batch_size=size, epochs=tuple(sorted(found[size]))) for size in probes.batch_sizes
        ),
        target=f"mAP {probes.target_map:g}",
        source=source_words(probes, config=config),
    )


def require_reached(probes: Probes) -> None:
    """Refuse a target that a run has not reached in all its epochs.

    Raises:
        InputError: Names each such run and what it has reached, and what to do.
    """
    target = probes.target_map
    short = [one for one in probes.asked if one.best < target]
    if not short:
        return
    reached: dict[int, list[str]] = {}
    for one in short:
        reached.setdefault(one.batch_size, []).append(f"{one.best:.3f}")
    words = "; ".join(f"{size} images a step: mAP {', '.join(reached[size])}" for size in reached)
    epochs = max((each.epoch for one in short for each in one.evaluations), default=0.0)
    lower = math.floor(1000 * min(one.best for one in short)) / 1000
    advice = f"give --probe-target {lower:g}, which all reach, or " if lower else "give "
    raise InputError(
        f"--probe-target {target:g}: {len(short)} of {len(probes.asked)} probe runs end below it, "
        f"after epoch {epochs:g} ({words}); {advice}another --plan and more training.epochs=N"
    )


def source_words(probes: Probes, *, config: str) -> str:
    """Which trainings, and the learning rates that they had."""
    seeds = "1 seed" if probes.seeds == 1 else f"{probes.seeds} seeds each"
    return f"{len(probes.wanted)} probe runs of {config} ({seeds}; {probes.rule.words})"


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
