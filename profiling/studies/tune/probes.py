"""What probe runs have told: short trainings at several global batch sizes until a target.

MLPerf's points hold for OpenImages. On other data `train.py` itself is run until a target, at each
global batch size from several seeds, and the evaluations of these runs are kept.
"""

import math

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.errors import InputError
from profiling.studies.tune.model import EpochsModel, Runs


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
