"""What `python -m data verify` is asked for."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from data.sources import SplitName
from retinanet.command_line import installed


class Request(NamedTuple):
    """What was asked for."""

    config: str
    overrides: Sequence[str]
    splits: Sequence[SplitName]
    images: bool
    sample: int | None
    json_file: Path | None
    clean_folder: Path | None

    def command(self, program: str, *more: str) -> str:
        """A command with the same configuration, to be typed."""
        arguments = ["--config", self.config, *self.overrides, *more]
        return f"{installed('python')} {program} {shlex.join(arguments)}"
