"""How often a run writes a checkpoint: `30min`, `500 steps`, `epoch`."""

import re
from dataclasses import dataclass
from typing import Literal

FORM = re.compile(r"(?:([1-9][0-9]{0,8}) ?)?(s|min|h|steps?|epochs?)")
SECONDS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Interval:
    """So many of a unit."""

    count: int
    unit: Literal["seconds", "steps", "epochs"]


def is_interval(text: str) -> bool:
    """Whether `interval_of` reads it."""
    match = FORM.fullmatch(text)
    return match is not None and (match[1] is not None or match[2] == "epoch")


def interval_of(text: str) -> Interval:
    """The interval that a text means of which `is_interval` is true."""
    match = FORM.fullmatch(text)
    assert match is not None
    count, unit = int(match[1] or 1), match[2]
    if unit in SECONDS:
        return Interval(count * SECONDS[unit], "seconds")
    return Interval(count, "steps" if unit.startswith("step") else "epochs")
