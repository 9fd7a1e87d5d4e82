"""Where the tiles of a picture lie: one geometry for `data tile`, `predict` and `evaluate`.

Tiles are squares of one side, evenly spread from edge to edge, so that neighbours share at least
the overlap. A picture that is shorter or narrower than a tile has tiles of its own height or
width; one that is no larger than a tile is one tile.
"""

from dataclasses import dataclass
from math import ceil
from numbers import Real
from typing import NamedTuple

from common.cli import positive, probability
from common.errors import InputError, require_count
from common.options import option

LEAST_SIDE, MOST_OVERLAP = 32, 0.9  # Beyond them a picture has hundred thousands of tiles
DEFAULT_OVERLAP = 0.2


class Window(NamedTuple):
    """A rectangle in whole pixels of an image; it may reach out of it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.bottom - self.top, self.right - self.left


@dataclass(frozen=True)
class Tiling:
    """How pictures are cut into tiles. Raises InputError if a number is out of its range."""

    side: int  # Of a tile. [pixels]
    overlap: float = DEFAULT_OVERLAP  # The share of a tile that its neighbour has too, at least

    def __str__(self) -> str:
        return f"tiles of {self.side} pixels that share {self.overlap:g}"

    def __post_init__(self) -> None:
        require_count(self.side, name="tiles")
        if self.side < LEAST_SIDE:
            raise InputError(f"tiles: expected at least {LEAST_SIDE} pixels, found {self.side}")
        if not isinstance(self.overlap, Real) or not 0 <= float(self.overlap) <= MOST_OVERLAP:
            raise InputError(f"overlap: expected 0 to {MOST_OVERLAP}, found {self.overlap!r}")

    def tiles(self, size: tuple[int, int]) -> list[Window]:
        """Return the tiles of a picture of (height, width) pixels, row by row."""
        height, width = size
        return [
            Window(left, top, min(left + self.side, width), min(top + self.side, height))
            for top in self._starts(height)
            for left in self._starts(width)
        ]

    def _starts(self, length: int) -> list[int]:
        """Return where the tiles along a side of the picture begin."""
        most_apart = self.side - round(self.overlap * self.side)
        steps = max(0, ceil((length - self.side) / most_apart))
        # No step is longer than `most_apart`, a whole number, by rounding either.
        return [round(step * (length - self.side) / max(1, steps)) for step in range(steps + 1)]


@dataclass(frozen=True, kw_only=True)
class TileOptions:
    """The options of commands that cut pictures into tiles."""

    tiles: int | None = option(
        "cut each picture into square tiles of N pixels, for objects that are small in it; a "
        "picture that is no larger stays whole",
        metavar="N",
        parse=positive,
        default=None,
    )
    overlap: float | None = option(
        "share of a tile that its neighbour has too; an object smaller than that is whole in one "
        f"of them (default: {DEFAULT_OVERLAP})",
        metavar="P",
        parse=probability,
        default=None,
    )

    def tiling(self) -> Tiling | None:
        """Return the tiling; None without `--tiles`. Raises InputError for `--overlap` alone."""
        if self.tiles is not None:
            return Tiling(self.tiles, *(() if self.overlap is None else (self.overlap,)))
        if self.overlap is not None:
            raise InputError("overlap: only with tiles; give their side too, such as 640")
        return None
