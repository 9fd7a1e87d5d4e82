"""Columns that are read a part at a time, without holding them twice at the end."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.text_column import TextColumn

GROWTH = 1.25
"""How much longer an array becomes when it is full; its pages are moved, nothing is copied."""


class GrowingArray:
    """An array that parts are put behind."""

    def __init__(self) -> None:
        self.array: NDArray[Any] = np.empty(0)
        self.length = 0

    def extend(self, part: NDArray[Any]) -> None:
        """Put `part` `[N, …]` behind what is there; the first one settles type and shape."""
        if self.length == 0:
            self.array = np.empty((0, *part.shape[1:]), dtype=part.dtype)
        length = self.length + len(part)
        if length > len(self.array):
            self.set_room(max(length, int(len(self.array) * GROWTH)))
        self.array[self.length : length] = part
        self.length = length

    def set_room(self, length: int) -> None:
        """Make the array so long, with what it holds."""
        self.array.resize((length, *self.array.shape[1:]), refcheck=False)

    def finish(self) -> NDArray[Any]:
        """All parts as one array."""
        self.set_room(self.length)
        return self.array


class GrowingTexts:
    """The same for a column of texts."""

    def __init__(self) -> None:
        self.content = GrowingArray()
        self.lengths = GrowingArray()

    def extend(self, part: TextColumn) -> None:
        """Put texts behind those that are there."""
        self.content.extend(part.content)
        self.lengths.extend(np.diff(part.starts))

    def finish(self) -> TextColumn:
        """All texts as one column."""
        lengths = self.lengths.finish()
        starts = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        return TextColumn(self.content.finish(), starts)


class GrowingColumns:
    """Several columns that grow together, by name."""

    def __init__(self) -> None:
        self.columns: dict[str, GrowingArray | GrowingTexts] = {}

    def extend(self, parts: dict[str, Any]) -> None:
        """Put a part behind each column; the first parts settle which columns there are."""
        for name, part in parts.items():
            is_text = isinstance(part, TextColumn)
            column = self.columns.setdefault(name, GrowingTexts() if is_text else GrowingArray())
            column.extend(part)

    def finish(self) -> dict[str, Any]:
        """All columns, which are let go of here."""
        columns, self.columns = self.columns, {}
        return {name: column.finish() for name, column in columns.items()}
