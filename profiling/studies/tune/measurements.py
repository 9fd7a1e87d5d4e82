"""The measurements of a host, and the probe runs, in a file that the planner reads.

The file can be used on another machine: other options need no new measurement. While a host is
measured, the file has a partial measurement, from which the next command continues. MLPerf's points
are for OpenImages; on other data a training runs until a target, with several global batch sizes
and seeds, and the evaluations of these probe runs are stored.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field
from pydantic.dataclasses import dataclass

from common.errors import InputError
from common.files import read_bytes, write_json
from common.numbers import require_moderate
from common.stored import first_difference, read_stored
from profiling.bench.job import ExchangeTime
from profiling.studies.rounds import Measured, Shape
from profiling.studies.tune.model import EpochsModel, Runs, StepTime


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation of a training: epochs until then, and mAP (IoU 0.50:0.95)."""

    epoch: float
    score: float


@dataclass(frozen=True, kw_only=True)
class ProbeRun:
    """One training until the target of probe runs, or until its end."""

    batch_size: int = Field(gt=0)  # Images in a step, however many parts it was made of
    seed: int
    evaluations: tuple[Evaluated, ...]
    is_over: bool
    """Whether it has trained all its epochs; else it ended where it reached its target."""
    seconds: float  # The time that the last command which ran it took

    @property
    def name(self) -> str:
        """The name, such as `global batch 16, seed 0`."""
        return f"global batch {self.batch_size}, seed {self.seed}"

    @property
    def best(self) -> float:
        """The highest mAP."""
        return max((evaluated.score for evaluated in self.evaluations), default=0.0)

    def epochs_until(self, target: float) -> float:
        """Return the interpolated epochs at which the mAP reaches the target; infinite if never."""
        before = Evaluated(epoch=0.0, score=0.0)
        for now in self.evaluations:
            if now.score >= target:
                # Linear between two evaluations; before the first one from mAP 0 at epoch 0.
                share = (target - before.score) / (now.score - before.score)
                return before.epoch + share * (now.epoch - before.epoch)
            before = now
        return math.inf


@dataclass(frozen=True, kw_only=True)
class RateRule:
    """The rule for the learning rate, given the global batch size."""

    rate: float = Field(gt=0)  # The configuration's, for `batch_size` images
    batch_size: int = Field(gt=0)
    is_linear: bool
    """Whether it grows with the batch, as SGD's; else with its square root, as Adam's."""

    def scaled(self, batch_size: int) -> float:
        """Return the rate for another batch.

        In proportion to its size (Goyal et al. 2017, section 2.1), or to the root of it (Krizhevsky
        2014, section 5), which keeps the variance of an update.
        """
        times = batch_size / self.batch_size
        return self.rate * (times if self.is_linear else math.sqrt(times))


@dataclass(frozen=True, kw_only=True)
class Probes:
    """All probe runs of one configuration, and their purpose."""

    target_map: float = Field(gt=0, le=1)
    batch_sizes: tuple[int, ...] = Field(min_length=2)  # Global ones, ascending
    seeds: int = Field(gt=0)
    rule: RateRule
    runs: tuple[
        ProbeRun, ...
    ] = ()  # Includes runs of earlier commands with other batch sizes and targets

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """The batch size and seed of each run, ordered by seed, so that every size is run early."""
        return [(size, seed) for seed in range(self.seeds) for size in self.batch_sizes]

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The batch size and seed of the missing and incomplete runs."""
        conclusive = [
            (run.batch_size, run.seed)
            for run in self.runs
            if run.is_over or run.best >= self.target_map
        ]
        return [name for name in self.wanted if name not in conclusive]


def epochs_of_probes(probes: Probes, *, config: str) -> EpochsModel:
    """Return the epochs by batch size from complete probe runs.

    Raises:
        InputError: Some did not reach the target in all their epochs; has the best mAP of each, and
            a target that all have reached.
    """
    target, rule = probes.target_map, probes.rule
    by_name = {(run.batch_size, run.seed): run for run in probes.runs}
    runs = [by_name[name] for name in probes.wanted]
    if short := [run for run in runs if run.best < target]:
        reached: dict[int, list[str]] = {}
        for run in short:
            reached.setdefault(run.batch_size, []).append(f"{run.best:.3f}")
        scores = "; ".join(
            f"{size} images per step: mAP {', '.join(reached[size])}" for size in reached
        )
        last = max((each.epoch for run in short for each in run.evaluations), default=0.0)
        # Rounded down, so that every run has reached the suggested target.
        lower = math.floor(1000 * min(run.best for run in short)) / 1000
        advice = f"give --probe-target {lower:g}, which all reached, or " if lower else "give "
        raise InputError(
            f"--probe-target {target:g}: {len(short)} of {len(runs)} probe runs did not reach it "
            f"by epoch {last:g} ({scores}); {advice}another --plan and a larger training.epochs"
        )
    epochs: dict[int, list[float]] = {}
    for run in runs:
        epochs.setdefault(run.batch_size, []).append(run.epochs_until(target))
    seeds = "1 seed" if probes.seeds == 1 else f"{probes.seeds} seeds each"
    scaling = "proportional to" if rule.is_linear else "with the square root of"
    learning_rate = f"learning rate {rule.rate:g} at {rule.batch_size}, {scaling} the batch size"
    return EpochsModel(
        runs=tuple(
            Runs(batch_size=size, epochs=tuple(sorted(epochs[size]))) for size in probes.batch_sizes
        ),
        target=f"mAP {target:g}",
        source=f"{len(probes.wanted)} probe runs of {config} ({seeds}; {learning_rate})",
    )


def probe_settings(probes: Probes, *, batch_size: int) -> list[str]:
    """Return the `section.field=value` to train with a global batch size as the probe runs do."""
    return [
        f"training.learning_rate={probes.rule.scaled(batch_size):.3g}",
        f"training.target_map={probes.target_map:g}",
    ]


@dataclass(frozen=True, kw_only=True)
class Added:
    """The time that exchanging gradients added to the steps of several ranks on the host."""

    ranks: int
    batch_size: int
    share: float  # Share of a step without exchange; around 0 it may be negative


@dataclass(frozen=True, kw_only=True)
class HostPeaks:
    """The peak rates of this host, from which those of other hosts follow."""

    core_gflops: float = Field(gt=0)  # Of a core while all compute, in the step's precision
    memory_gb_per_s: float = Field(gt=0)  # Of all cores


@dataclass(frozen=True, kw_only=True)
class BetweenHosts:
    """Exchanges of gradients between ranks on several hosts, one on each."""

    hosts: tuple[str, ...] = Field(min_length=2)
    exchanges: tuple[ExchangeTime, ...] = Field(
        min_length=2,
        # The name in files from before the trainer's own way was measured.
        validation_alias=AliasChoices("exchanges", "all_reduces"),
    )
    over: str  # How many hosts, and which transport, in words


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All measurements of one host."""

    command: str
    environment: Mapping[str, Any]
    cores: int = Field(gt=0)  # Cores that ranks may compute on
    sockets: int = Field(gt=0)
    shapes: tuple[Shape, ...] = Field(min_length=1)
    """Every shape that the host has the cores and the memory for."""
    data: str  # As `--data` names it: `openimages`, or a configuration
    config: str
    overrides: tuple[str, ...]
    images: int = Field(gt=0)
    evaluated_images: int = Field(gt=0)
    batch_size: int = Field(gt=0)  # Images of a rank in a step that the configuration has
    every: int = Field(gt=0)  # Epochs between two evaluations
    image_size: int
    classes: int
    precision: str
    compress: str
    gradient_bytes: int = Field(ge=4, le=10**10)  # Gradients of one rank, as they are sent
    steps: tuple[StepTime, ...] = Field(min_length=2)
    added: tuple[Added, ...]
    backward_share: float
    data_share: float  # The largest share of a step that ranks waited for data
    evaluation_seconds: float  # Time of an image, by one thread
    metric_seconds: float  # Time of COCO's metric of the whole validation split, and of its files
    busy_cores: float
    comm_cores: int = 0  # Of a rank
    update_seconds: float | None = None
    """Time of the optimizer's step, by one thread; None in files from before compute groups."""
    peaks: HostPeaks | None = None  # None in files from before descriptions of clusters
    between_hosts: BetweenHosts | None = None
    probes: Probes | None = None
    """None: the epochs until the target are MLPerf's, or were not asked for yet."""


@dataclass(frozen=True, kw_only=True)
class PartialMeasurement:
    """The measurements of a host so far; fields are those of `Measurements`."""

    command: str
    environment: Mapping[str, Any]
    data: str
    overrides: tuple[str, ...]
    question: Mapping[str, Any]  # All else that the numbers depend on, without the machine
    measured: tuple[Shape, ...]  # The shapes whose steps are to be measured
    shapes: tuple[Shape, ...]
    jobs: tuple[Measured, ...] = ()
    evaluation_seconds: float | None = None
    metric_seconds: float | None = None
    update_seconds: float | None = None
    peaks: HostPeaks | None = None
    unfinished: Literal[True] = True

    @property
    def done(self) -> int:
        """The number of jobs that have run."""
        return sum(len(of_shape.jobs) for of_shape in self.jobs)


MAY_DIFFER = ("code", "kernel")
"""Facts that may differ between the jobs of one measurement, as between rounds of an ablation."""


def write_measurements(file: Path, measured: Measurements | PartialMeasurement) -> None:
    """Write the measurements as JSON; replaces an earlier state.

    Raises:
        InputError: The file cannot be written there.
    """
    write_json(file, asdict(measured))


def read_measurements(file: Path) -> Measurements | PartialMeasurement:
    """Read what `write_measurements` wrote.

    Raises:
        InputError: It is something else; names the file and the field.
    """
    try:
        content = json.loads(read_bytes(file))
    except (OSError, ValueError, RecursionError):
        # `read_stored` reads it again and names the fault.
        content = None
    require_moderate(content, str(file))
    # Plan files of either kind have the same name; this field separates them.
    is_partial = isinstance(content, dict) and content.get("unfinished") is True
    kind: type[Any] = PartialMeasurement if is_partial else Measurements
    measured: Measurements | PartialMeasurement = read_stored(
        file,
        kind,
        wrong="was not written by `retinanet launch tune --plan`",
        advice="move it, or give another name",
    )
    return measured


def require_same(file: Path, begun: PartialMeasurement, now: PartialMeasurement) -> None:
    """Refuse to continue a measurement, `begun`, that was made under other conditions.

    Raises:
        InputError: Names the first thing that differs, as it was and as it is.
    """
    difference = first_difference(
        begun.environment, now.environment, ignored=MAY_DIFFER
    ) or first_difference(begun.question, now.question, ignored=MAY_DIFFER)
    if difference:
        name, before, now_is = difference
        raise InputError(
            f"{file}: the measurement was started with {name} {before}, now it is {now_is}; "
            "continue under the same conditions, move the file, or give another --plan"
        )
