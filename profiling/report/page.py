"""A page from its sections: one file that loads nothing and runs nothing but its own script.

TODO-DOC What a page is made of: plain values, no HTML.

Texts may hold anything that a log holds; `profiling.report.page` makes it harmless.

TODO-DOC Numbers as the page has them.

TODO-DOC The chart of what each kind of primitive would take at the roofline, and what it takes.

TODO-DOC The chart of a step by phases: what oneDNN does in each, and what is not oneDNN's.

TODO-DOC Charts of the toolkit as blocks of the page.

TODO-DOC matplotlib's SVG as a part of a page: no styles of its own, no names that clash, nothing foreign.

A page that allows neither inline styles nor scripts can hold it: styles become attributes, and only
the elements and attributes that charts are made of may be there.
"""

import base64
import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree as ET

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from common.charts import as_svg, new_figure
from common.console import significant
from common.errors import printable
from profiling.efficiency.analysis import kind_and_direction
from profiling.onednn_log.work import DIRECTION_COLOURS, direction_name
from profiling.report.material import MeasuredPart, Phase, largest_kinds

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
    """As `profiling.report.page` makes it."""
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


BARS = 12
PALE = 0.35


def draw_lost(parts: Sequence[MeasuredPart], *, unit: str) -> Figure:
    """A bar for each kind and direction: full up to the roofline, pale what is beyond it."""
    shown = [part for part in parts if part.bounded_ms][:BARS]
    figure = new_figure(height=1.6 + 0.42 * len(shown))
    axes = figure.subplots()
    for place, part in enumerate(shown):
        name = direction_name(part.direction)
        colour = DIRECTION_COLOURS.get(name, DIRECTION_COLOURS[""])
        ideal = part.bounded_ms - part.lost_ms
        axes.barh(place, ideal, color=colour, height=0.7)
        axes.barh(place, part.lost_ms, left=ideal, color=colour, alpha=PALE, height=0.7)
        text = (
            f"  {significant(part.bounded_ms)} ms, {significant(part.lost_ms)} beyond the roofline"
        )
        axes.text(part.bounded_ms, place, text, va="center", fontsize=9)
    names = [kind_and_direction(part.kind, part.direction) for part in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(part.bounded_ms for part in shown))
    axes.set_xlabel(f"milliseconds {unit}; full: at the roofline, pale: beyond it")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


COLOURS = ("#3c8ddc", "#f08c00", "#2b8a3e", "#9c36b5", "#e6194b")
OTHER_KINDS, ELSEWHERE = "#495057", "#ced4da"
SMALLEST_LABELLED = 0.05
"""Of the longest phase, from which a piece has its milliseconds in it."""


def draw_phases(phases: Sequence[Phase]) -> Figure:
    """A bar for each phase, in pieces by kind of primitive; lengths are milliseconds a step."""
    figure = new_figure(height=1.6 + 0.5 * len(phases))
    axes = figure.subplots()
    kinds = largest_kinds(phases, len(COLOURS))
    longest = max(phase.wall_ms for phase in phases)
    for place, phase in enumerate(phases):
        start = 0.0
        for value, colour in pieces_of(phase, kinds):
            axes.barh(place, value, left=start, color=colour, height=0.7)
            if value > SMALLEST_LABELLED * longest:
                ink = "black" if colour == ELSEWHERE else "white"
                axes.text(start + value / 2, place, f"{value:,.0f}", ha="center", va="center",
                          color=ink, fontsize=9)  # fmt: skip
            start += value
        axes.text(start, place, f"  {significant(phase.wall_ms)} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(phases)), [phase.name for phase in phases])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * longest)
    axes.set_xlabel("milliseconds a step")
    axes.spines[["top", "right"]].set_visible(False)
    names = [(kind.replace("_", " "), colour) for kind, colour in zip(kinds, COLOURS, strict=False)]
    if any(set(phase.kinds_ms) - set(kinds) for phase in phases):
        names.append(("other kinds", OTHER_KINDS))
    for name, colour in (*names, ("not in oneDNN", ELSEWHERE)):
        axes.bar(0, 0, color=colour, label=name)
    figure.legend(loc="outside lower center", ncol=4, frameon=False)
    return figure


def pieces_of(phase: Phase, kinds: Sequence[str]) -> list[tuple[float, str]]:
    """Milliseconds and colours, from left to right."""
    pieces = [
        (phase.kinds_ms.get(kind, 0.0), colour)
        for kind, colour in zip(kinds, COLOURS, strict=False)
    ]
    others = sum(ms for kind, ms in phase.kinds_ms.items() if kind not in kinds)
    return [*pieces, (others, OTHER_KINDS), (phase.elsewhere_ms, ELSEWHERE)]


def chart(draw: Callable[[], Figure], *, name: str, label: str, caption: str) -> Chart:
    """Draw a figure and make it part of the page.

    Args:
        draw: Makes the figure.
        name: Of this chart alone.
        label: What a screen reader says of it.
        caption: Shown below it.
    """
    # A log's words are no formulas, and a letter that a font lacks is no news.
    with mpl.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        return Chart(inline_svg(draw(), name=name, label=label), caption=caption)


DROPPED = ("metadata", "style")
ELEMENTS = ("svg", "g", "defs", "path", "use", "text", "tspan", "clipPath", "rect", "image",
            "pattern", "circle", "line", "polygon", "polyline", "ellipse")  # fmt: skip
ATTRIBUTES = (
    *("id", "d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx", "ry", "points"),
    *("width", "height", "viewBox", "transform", "clip-path", "href", "patternUnits"),
    *("fill", "fill-opacity", "fill-rule", "opacity", "stroke", "stroke-width", "stroke-opacity"),
    *("stroke-linecap", "stroke-linejoin", "stroke-dasharray", "stroke-dashoffset"),
    *("stroke-miterlimit", "font-size", "font-family", "font-style", "font-weight"),
    *("font-variant", "font-stretch", "text-anchor", "dominant-baseline", "image-rendering"),
)
PASSED_OVER = ("version", "style", "type", "preserveAspectRatio")
FONTS = "DejaVu Sans, Verdana, sans-serif"
"""Verdana is as wide as the font that matplotlib measures with."""
NOT_XML = re.compile(r"[^\t\n\r -\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
NO_BREAK = "\N{NO-BREAK SPACE}"
"""Blanks at the beginning of a text are dropped; these are not."""
DECIMALS = re.compile(r"(\.\d\d)\d+")


def inline_svg(figure: Figure, *, name: str, label: str) -> str:
    """A figure as markup for the middle of a page.

    Args:
        figure: A chart.
        name: Unlike that of every other chart of the page; goes before all ids.
        label: What a screen reader says of it.
    """
    root = ET.fromstring(NOT_XML.sub("�", as_svg(figure)))
    clean(root, name)
    width = float(root.attrib.pop("width").removesuffix("pt"))
    root.attrib.pop("height")
    root.attrib |= {
        "class": "wide" if width > 760 else "narrow",
        "role": "img",
        "aria-label": printable(label),
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return ET.tostring(root, encoding="unicode")


def clean(element: ET.Element, name: str) -> None:
    """Make an element and all below it as they must be, in place."""
    element.tag = local(element.tag)
    assert element.tag in ELEMENTS, f"<{element.tag}> is in no chart that is known"
    attributes = {local(key): value for key, value in element.attrib.items()}
    styles = [pair.partition(":") for pair in attributes.pop("style", "").split(";")]
    attributes |= {key.strip(): value.strip() for key, _, value in styles if value}
    element.attrib.clear()
    for key, value in attributes.items():
        if key not in PASSED_OVER:
            assert key in ATTRIBUTES, f"{key}= is in no chart that is known"
            element.set(key, changed(key, value, name))
    for child in list(element):
        if local(child.tag) in DROPPED:
            element.remove(child)
        else:
            clean(child, name)
    element.tail = None
    if element.tag in ("text", "tspan") and element.text:
        rest = printable(element.text).lstrip(" ")
        element.text = NO_BREAK * (len(element.text) - len(rest)) + rest
    else:
        element.text = None


def changed(key: str, value: str, name: str) -> str:
    """An attribute's value: ids with the chart's name, paths without the last decimals."""
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        assert value.startswith(("#", "data:image/png;base64,"))
        return f"#{name}-{value[1:]}" if value.startswith("#") else value
    if key == "clip-path" or value.startswith("url("):
        return value.replace("url(#", f"url(#{name}-")
    if key == "font-family":
        return FONTS
    if key in ("d", "x", "y"):
        return DECIMALS.sub(r"\1", " ".join(value.split()))
    return value


def local(tag: str) -> str:
    """A name without its namespace."""
    return tag.rpartition("}")[2]
