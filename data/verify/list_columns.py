"""The columns of one of COCO's lists while it is read."""

from typing import Any

from data.growing import GrowingArray, GrowingTexts
from data.text_column import TextColumn


class ListColumns:
    """One list's columns while they are read."""

    def __init__(self) -> None:
        self.length = 0
        """Entries in the file so far"""
        self.readable = 0
        self.columns: dict[str, GrowingArray | GrowingTexts] = {}
        self.unreadable_ids: set[int] = set()
        """Ids of entries that are wrong otherwise"""
        self.unreadable_image_ids: set[int] = set()
        """What such entries name as their image"""

    @property
    def unreadable(self) -> int:
        """Entries that are no part of the columns."""
        return self.length - self.readable

    def extend(self, columns: dict[str, Any]) -> None:
        """Put a part's columns behind."""
        self.readable += len(columns["place"])
        for field, part in columns.items():
            is_text = isinstance(part, TextColumn)
            column = self.columns.setdefault(field, GrowingTexts() if is_text else GrowingArray())
            column.extend(part)

    def finish(self) -> dict[str, Any]:
        """The columns, which are let go of here."""
        columns, self.columns = self.columns, {}
        return {field: column.finish() for field, column in columns.items()}
