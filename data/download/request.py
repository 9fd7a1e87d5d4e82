"""What a user asks to download."""

from pathlib import Path
from typing import NamedTuple

from data.download.images import Manners
from data.sources import SplitName


class Request(NamedTuple):
    """Which part of a data set, from where, and where to."""

    out: Path
    splits: tuple[SplitName, ...]
    limit: int | None
    """Images of each split; None for all."""
    classes: tuple[str, ...]
    """Names of classes, or the one word `all` (or `mlperf`, for OpenImages)."""
    mirror: str | None
    """Address of a server that holds copies, without a slash at its end; None for the owners'."""
    manners: Manners
