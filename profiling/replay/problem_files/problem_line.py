"""A problem as benchdnn's command line has it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Layouts = Literal["log", "any"]
"""`log`: what the log says, and the library's choice where it was so in the log; `any`: the
library's choice wherever benchdnn lets it choose."""


class Dialect(NamedTuple):
    """Which words are used, and for which layouts."""

    major: int = 3
    """benchdnn's own: 2, as documented for 2.x, or 3."""
    layouts: Layouts = "log"


class NotExpressibleError(ValueError):
    """benchdnn has no words for a problem. The message says why, in one line."""


@dataclass(frozen=True, slots=True)
class ProblemLine:
    """One problem: a driver's name, its options, its sizes."""

    driver: str
    """`conv`, `matmul` …"""
    options: tuple[str, ...]
    """`--dir=FWD_D`, `--dt=bf16:bf16:bf16` …"""
    sizes: str
    """`mb2_ic64oc64_ih200…`, `400x256:256x64` …"""
    notes: tuple[str, ...] = ()
    """How what benchdnn runs differs from what the log tells, each in a few words."""

    @property
    def words(self) -> tuple[str, ...]:
        """What follows `--DRIVER`; options of a line before do not count on it.

        Logs name layouts that are not among the documented ones, and benchdnn takes those
        only if told so.
        """
        return ("--reset", "--allow-enum-tags-only=false", *self.options, self.sizes)

    @property
    def text(self) -> str:
        """A line of a problem file."""
        return " ".join(self.words)
