"""A split's findings: how many of each kind, and where the first of them are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.verify.kinds import KINDS, Severity

PLACES_KEPT = 1000
"""Of each kind; a data set in which everything is wrong would fill the memory."""


class Place(NamedTuple):
    """Where something was found."""

    entry: str
    """Such as `annotations[17].bbox`, counted from 0; or a file's name"""
    found: str
    """What is there, in one line"""
    file: str | None = None
    """The image, where the entry is not the image's own"""


@dataclass
class Finding:
    """Everything of one kind and severity."""

    name: str
    severity: Severity
    count: int = 0
    places: list[Place] = field(default_factory=list)
    """The first `PLACES_KEPT`"""


class Findings:
    """Findings of one split, which checks add to."""

    def __init__(self) -> None:
        self.by_kind: dict[tuple[Severity, str], Finding] = {}

    def add(self, name: str, place: Place, *, severity: Severity | None = None) -> None:
        """Count one; `severity` where it is not the kind's."""
        finding = self._finding(name, severity)
        finding.count += 1
        if len(finding.places) < PLACES_KEPT:
            finding.places.append(place)

    def add_rows(
        self,
        name: str,
        rows: NDArray[np.int64],
        place_of: Callable[[int], Place],
        *,
        severity: Severity | None = None,
    ) -> None:
        """Count many, given by number; only of those that are kept the place is asked for."""
        if not len(rows):
            return
        finding = self._finding(name, severity)
        finding.count += len(rows)
        room = PLACES_KEPT - len(finding.places)
        finding.places += [place_of(row) for row in rows[:room].tolist()]

    def in_order(self) -> list[Finding]:
        """The worst first, then in the order of `KINDS`."""
        severities, names = list(Severity), list(KINDS)
        return sorted(
            self.by_kind.values(),
            key=lambda one: (severities.index(one.severity), names.index(one.name)),
        )

    def stopping(self) -> list[Finding]:
        """Those that training would not go on with."""
        return [one for one in self.in_order() if one.severity is Severity.STOPS]

    def count(self, name: str) -> int:
        """How many there are of a kind, whatever their severity."""
        return sum(one.count for one in self.by_kind.values() if one.name == name)

    def _finding(self, name: str, severity: Severity | None) -> Finding:
        key = (severity or KINDS[name].severity, name)
        return self.by_kind.setdefault(key, Finding(name, key[0]))
