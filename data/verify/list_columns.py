"""The columns of one of COCO's lists while it is read."""

from typing import Any

from data.growing import GrowingColumns


class ListColumns:
    """One list's columns while they are read."""

    def __init__(self) -> None:
        self.length = 0
        """Entries in the file so far"""
        self.readable = 0
        self.columns = GrowingColumns()
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
        self.columns.extend(columns)

    def finish(self) -> dict[str, Any]:
        """The columns, which are let go of here."""
        return self.columns.finish()
