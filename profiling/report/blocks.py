"""What a page is made of: plain values, no HTML.

Texts may hold anything that a log holds; `profiling.report.page` makes it harmless.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    is_number: bool = True
    meaning: str = ""
    """A sentence, where the name does not say it all."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    text: str
    value: float | None = None
    """What a column of numbers is sorted by; None: nothing is known, always last."""
    details: tuple[str, ...] = ()
    """Smaller lines below."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that a browser can sort and, if there are many, filter."""

    template: ClassVar[str] = "table.html"
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    totals: Sequence[Sequence[Cell]] = ()
    """Rows that stay at the bottom."""
    notes: Sequence[str] = ()

    @property
    def has_details(self) -> bool:
        """Whether rows need room for smaller lines."""
        return any(row[0].details for row in self.rows)

    @property
    def has_filter(self) -> bool:
        """Whether there is something to search in."""
        return len(self.rows) > 12


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture."""

    template: ClassVar[str] = "chart.html"
    svg: str
    """As `profiling.report.inline_svg` makes it."""
    caption: str
    """What it shows and how to read it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    template: ClassVar[str] = "facts.html"
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs."""

    template: ClassVar[str] = "text.html"
    paragraphs: Sequence[str]


@dataclass(frozen=True, slots=True)
class Missing:
    """What would be here, and the command that makes it."""

    template: ClassVar[str] = "missing.html"
    text: str
    command: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something to look at next."""

    title: str
    evidence: str
    saves: str
    todo: str
    section: str
    """The name of the section that shows it."""


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What to look at next, in order."""

    template: ClassVar[str] = "suggestions.html"
    found: Sequence[Suggestion]


Block = Table | Chart | Facts | Text | Missing | Suggestions


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the page."""

    name: str
    """For links to it."""
    heading: str
    blocks: Sequence[Block] = field(default_factory=list)
