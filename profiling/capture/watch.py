"""A hook, and the steps that it is for."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from retinanet.engine.engines import PreparedTraining


class Hook(Protocol):
    """Watches steps. What the training does happens between these calls, never within one."""

    file: Path
    """What it writes; another name may be chosen before `open`."""

    def open(self, prepared: PreparedTraining) -> None:
        """Its first step comes next: do what takes time."""

    def begin_step(self, number: int, prepared: PreparedTraining) -> None:
        """A step begins."""

    def begin_phase(self, name: str) -> None:
        """A phase of it begins."""

    def end_phase(self, name: str) -> None:
        """That phase has ended."""

    def end_step(self, *, whole: bool) -> None:
        """The step has ended, or an error has broken it off."""

    def close(self) -> None:
        """No step comes any more: write what there is. May be called twice."""


@dataclass
class Watch:
    """A hook, and the steps that it is for."""

    name: str
    """The section that asked for it: `profile.onednn`."""
    hook: Hook
    steps: Collection[int]
    is_open: bool = False
    done: list[int] = field(default_factory=list)
    """Steps that it has seen whole."""
    is_shown: bool = True
    """Whether a person is told of it; else it serves another hook."""
    problem: str = ""
    """Why it does not watch, or no longer does."""
