"""What has been probed and trained, in a file after each, so that a repeated command goes on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.groups.loss_curve import Evaluated, Point
from launch.groups.search import Setting
from retinanet.errors import InputError
from retinanet.output_files import write_whole
from retinanet.regular_files import read_text

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
