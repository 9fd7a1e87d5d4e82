"""Which numbers of groups, momenta and learning rates are probed, in which order.

Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 4.2, algorithm 1): as many groups as there
can be, with a grid of momentum and learning rate. Where the best of it is no momentum at all, not
waiting brings more than is wanted already: half as many groups, and again.

TODO-DOC How far a training had come at what time, from its `metrics.jsonl`: losses, and evaluations.

TODO-DOC What has been probed and trained, in a file after each, so that a repeated command goes on.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common.errors import InputError
from common.files import read_text, write_whole
from retinanet.config_types import DEFAULT_BETA1, explicit_momentum

BETAS = (0.0, 0.6, DEFAULT_BETA1)
"""Beside what the rule says (`retinanet.config_types`)."""
RATES = (1.0, 0.3, 0.1, 0.03)
"""Shares of the configuration's learning rate: with late gradients a smaller one is stable."""


@dataclass(frozen=True, order=True)
class Setting:
    """What a probe trains with."""

    groups: int
    beta1: float
    rate: float = 1.0
    """Share of the configuration's learning rate."""

    @property
    def name(self) -> str:
        """`groups2-beta0.3-rate0.1`, for files."""
        return f"groups{self.groups}-beta{self.beta1:g}-rate{self.rate:g}"

    @property
    def words(self) -> str:
        """For a person."""
        groups = "1 group" if self.groups == 1 else f"{self.groups} groups"
        rate = "" if self.rate == 1 else f", learning rate × {self.rate:g}"
        return f"{groups}, beta1 {self.beta1:g}{rate}"


def for_whole(setting: Setting) -> Setting:
    """What a whole training takes where this probe was the best: the next larger learning rate.

    A short probe favours small ones, whose loss falls at once; larger ones pay off when they have
    fallen (Wu et al. 2018, "Understanding Short-Horizon Bias", arXiv 1803.02021).
    """
    larger = [rate for rate in RATES if rate > setting.rate]
    return replace(setting, rate=min(larger, default=setting.rate))


def settings_of(groups: int) -> list[Setting]:
    """The grid of a number of groups. One group is plain training, with its own momentum."""
    betas = {*BETAS, explicit_momentum(groups)} if groups > 1 else {DEFAULT_BETA1}
    return [Setting(groups, beta1, rate) for beta1 in sorted(betas) for rate in RATES]


def search(ranks: int, *, best_of: Callable[[Sequence[Setting]], Setting]) -> Iterator[Setting]:
    """The settings to probe, one after another.

    Args:
        ranks: As many groups there can be.
        best_of: Of settings that have been probed.
    """
    yield from settings_of(1)
    groups = ranks
    while groups > 1:
        settings = settings_of(groups)
        yield from settings
        if best_of(settings).beta1 > 0:
            return
        groups = max(one for one in range(1, groups) if ranks % one == 0 and one <= groups / 2)


LAST_SHARE = 0.25
"""Of the time, over which losses are averaged: single steps scatter."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A step."""

    seconds: float
    """When it was done, since the first step that counts began."""
    loss: float
    images: int


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """An evaluation."""

    epoch: float
    seconds: float
    """When it was done: of all steps before, and of evaluations with this one."""
    map: float
    map_50: float


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Mean over the last steps until some time."""

    mean: float
    error: float
    """Standard error of the mean, from the scatter of the steps."""


def points_of(records: Sequence[Mapping[str, Any]], *, after_step: int = 0) -> list[Point]:
    """Steps in order of time. Groups work side by side, from the last step that was everybody's.

    Args:
        records: Of `metrics.jsonl`.
        after_step: The last step that does not count.
    """
    together = 0.0
    apart: dict[int, float] = {}
    points = []
    for one in records:
        if not counts(one, after_step) or one["loss"] is None:
            continue
        if "group" in one:
            at = apart.get(one["group"], together) + one["seconds"]
            apart[one["group"]] = at
        else:
            at = together = max([together, *apart.values()]) + one["seconds"]
            apart = {}
        points.append(Point(seconds=at, loss=one["loss"], images=images_of(one)))
    return sorted(points, key=lambda point: point.seconds)


def map_curve(records: Sequence[Mapping[str, Any]]) -> list[Evaluated]:
    """The evaluations of a run, in order; a metric that does not exist counts as none."""
    found, evaluating = [], 0.0
    for place, one in enumerate(records):
        if one["kind"] != "evaluation":
            continue
        evaluating += one["seconds"]
        points = points_of(records[:place])
        found.append(
            Evaluated(
                epoch=one["epoch"],
                seconds=(points[-1].seconds if points else 0.0) + evaluating,
                map=one["map"] or 0.0,
                map_50=one["map_50"] or 0.0,
            )
        )
    return found


def images_of(step: Mapping[str, Any]) -> int:
    """The images of a step, of its own group."""
    images: int = step["images"]
    return images


def mean_staleness(records: Sequence[Mapping[str, Any]], *, after_step: int = 0) -> float:
    """Of the steps of groups; 0 where all ranks have taken each together."""
    found = [one["staleness"] for one in records if counts(one, after_step) and "staleness" in one]
    return fmean(found) if found else 0.0


def counts(record: Mapping[str, Any], after_step: int) -> bool:
    """Whether it is a step after another."""
    return record["kind"] == "step" and record["step"] > after_step


def loss_at(points: Sequence[Point], seconds: float) -> Loss:
    """The mean loss over the last quarter of the time until then; infinite where it is none."""
    late = [one.loss for one in points if (1 - LAST_SHARE) * seconds < one.seconds <= seconds]
    if not late:
        return Loss(mean=math.inf, error=math.inf)
    return Loss(mean=fmean(late), error=stdev(late) / len(late) ** 0.5 if late[1:] else math.inf)


def images_per_second(points: Sequence[Point]) -> float:
    """Of all groups together."""
    return sum(one.images for one in points) / points[-1].seconds if points else 0.0


FILE = "probes.json"


@dataclass(frozen=True, kw_only=True)
class Probed:
    """One probe."""

    setting: Setting
    points: list[Point]
    staleness: float
    """Mean of the steps."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One whole training, until the target or the end."""

    setting: Setting
    curve: list[Evaluated]
    """At least one."""
    steps: int
    staleness: float
    target: float | None
    """mAP, of the configuration."""

    @property
    def seconds(self) -> float:
        """Of steps and evaluations."""
        return self.curve[-1].seconds

    @property
    def epochs(self) -> float:
        """That it took."""
        return self.curve[-1].epoch

    @property
    def best(self) -> Evaluated:
        """The evaluation with the highest mAP."""
        return max(self.curve, key=lambda one: one.map)

    @property
    def is_reached(self) -> bool:
        """Whether that is the target."""
        return self.target is not None and self.best.map >= self.target


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Everything so far."""

    about: dict[str, Any]
    """What all of it was made with: another command's cannot go on with it."""
    probes: list[Probed] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)


def read_kept(folder: Path, about: Mapping[str, Any]) -> Kept:
    """What a folder has; nothing where it is new.

    Raises:
        InputError: It was made with other settings, or is no such file.
    """
    file = folder / FILE
    if not file.exists():
        return Kept(about=dict(about))
    try:
        content = json.loads(read_text(file))
        found = Kept(
            about=content["about"],
            probes=[probed_from(one) for one in content["probes"]],
            trained=[trained_from(one) for one in content["trained"]],
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{file}: not what this command has written ({error}); give another --out"
        ) from error
    for name, now in about.items():
        if found.about.get(name) != now:
            raise InputError(
                f"{file}: {name} was {found.about.get(name)}, is now {now}; give another --out, or "
                "the settings of before"
            )
    return found


def probed_from(content: dict[str, Any]) -> Probed:
    """One probe, from its JSON."""
    return Probed(
        setting=Setting(**content["setting"]),
        points=[Point(**one) for one in content["points"]],
        staleness=content["staleness"],
    )


def trained_from(content: dict[str, Any]) -> Trained:
    """One whole training, from its JSON."""
    return Trained(
        setting=Setting(**content["setting"]),
        curve=[Evaluated(**one) for one in content["curve"]],
        steps=content["steps"],
        staleness=content["staleness"],
        target=content["target"],
    )


def write_kept(folder: Path, kept: Kept) -> None:
    """Write it whole.

    Raises:
        InputError: The folder cannot be written.
    """
    write_whole(folder / FILE, json.dumps(asdict(kept), indent=1, ensure_ascii=False))
