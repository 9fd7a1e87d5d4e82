"""A page from its sections: one file that loads nothing and runs nothing but its own script.

TODO-DOC What a page is made of: plain values, no HTML.

Texts may hold anything that a log holds; `profiling.report.page` makes it harmless.

TODO-DOC Numbers as the page has them.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.console import significant
from common.errors import printable

TEMPLATES = Path(__file__).parent / "templates"


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
    """As `profiling.report.charts` makes it."""
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


def render_page(sections: Sequence[Section], *, title: str, summary: Sequence[str]) -> str:
    """The whole page as HTML.

    Args:
        sections: In the order in which a person reads them.
        title: Heading and name of the page.
        summary: Sentences for who reads no further.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    environment.filters["with_code"] = with_code
    return environment.get_template("page.html").render(
        sections=sections,
        headings={section.name: section.heading for section in sections},
        title=title,
        summary=summary,
        markup=Markup,
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
    )


def harmless(value: object) -> object:
    """Text without control characters and marks that turn the direction of writing."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def with_code(text: str) -> Markup:
    """Text in which `what stands between backticks` is code; everything is escaped."""
    pieces = enumerate(printable(text).split("`"))
    marked = (Markup("<code>{}</code>" if place % 2 else "{}").format(one) for place, one in pieces)
    return Markup("").join(marked)


def content_policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which only these two work, and nothing is ever loaded."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{digest(style)}'",
            f"script-src '{digest(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def digest(text: str) -> str:
    """A hash as policies have it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def three(value: float) -> str:
    """With about three figures and never an exponent: `12,346`, `12.3`, `0.012`."""
    if value == 0:
        return "0"
    if 0 < value < 0.0005:
        return "< 0.001"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{decimals}f}"


def number(value: float | None) -> Cell:
    """A cell of a column of numbers, empty where there is none."""
    return Cell("") if value is None else Cell(three(value), value)


def count(value: float) -> Cell:
    """Of calls: whole where it is, else a mean."""
    return Cell(f"{value:,.0f}" if value == round(value) else three(value), value)


def percent(value: float | None) -> Cell:
    """A share, 0 to 1."""
    return Cell("") if value is None else Cell(f"{value:.1%}", value)


def times(count: float) -> str:
    """`1 call`, `12.5 calls`."""
    return "1 call" if count == 1 else f"{significant(count)} calls"


def sentence(text: str) -> str:
    """With a capital, and a full stop; oneDNN stays as it is written."""
    begin = text[:1] if text.startswith("oneDNN") else text[:1].upper()
    return f"{begin}{text[1:]}."


def listed(words: list[str], most: int) -> str:
    """The first of them with commas, and how many more there are."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
