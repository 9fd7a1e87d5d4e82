"""What has been probed and trained, in a file after each, so that a repeated command goes on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.groups.loss_curve import Point
from launch.groups.search import Setting
from retinanet.errors import InputError
from retinanet.output_files import write_whole

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
    """One whole training."""

    setting: Setting
    seconds: float
    """Of steps and evaluations, until the target or the end."""
    epochs: float
    steps: int
    staleness: float
    map: float
    """The best evaluation's."""
    map_50: float
    is_reached: bool
    """Whether that is the target of the configuration."""


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
        content = json.loads(file.read_text(encoding="utf-8"))
        found = Kept(
            about=content["about"],
            probes=[probed_from(one) for one in content["probes"]],
            trained=[
                Trained(**{**one, "setting": Setting(**one["setting"])})
                for one in content["trained"]
            ],
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
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


def write_kept(folder: Path, kept: Kept) -> None:
    """Write it whole.

    Raises:
        InputError: The folder cannot be written.
    """
    write_whole(folder / FILE, json.dumps(asdict(kept), indent=1, ensure_ascii=False))
