"""What a check has found."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    """What it was, in a word or two, such as `disk space`."""
    level: Level
    """`failure`: the run cannot work. `warning`: it may not, or not as well as it could."""
    found: str
    """How it stands, with numbers."""
    fix: str = ""
    """What the user can do; empty where nothing needs to be done."""

    @property
    def line(self) -> str:
        """The finding and its fix in one line."""
        return "; ".join(filter(None, (f"{self.subject}: {self.found}", self.fix)))


def ok(subject: str, found: str) -> Finding:
    """Nothing is wrong there."""
    return Finding(subject=subject, level="ok", found=found)


def warning(subject: str, found: str, *, fix: str) -> Finding:
    """The run may go on, and this may end or slow it."""
    return Finding(subject=subject, level="warning", found=found, fix=fix)


def failure(subject: str, found: str, *, fix: str) -> Finding:
    """The run cannot work like this."""
    return Finding(subject=subject, level="failure", found=found, fix=fix)
