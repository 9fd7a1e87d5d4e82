"""A page of sections: one HTML file without external resources, with a single script.

Sections are plain values, no HTML: tables (`common.charts`), charts, pictures, facts, texts. They
may hold anything that a log or a file name holds; rendering makes it harmless.

Charts become part of the page as SVG without styles of its own, ids that clash, or anything
foreign: a page that allows neither inline styles nor scripts can hold it. Styles become attributes,
and only the elements and attributes that charts are made of may be there.
"""

import base64
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.charts import Table, as_svg, plain
from common.errors import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parent / "templates"


class Chart(NamedTuple):
    """A chart created by `chart`."""

    svg: str
    caption: str  # What it shows and how to read it


class Facts(NamedTuple):
    """Names and values."""

    pairs: Sequence[tuple[str, str]]


class Text(NamedTuple):
    """Paragraphs."""

    paragraphs: Sequence[str]


class Missing(NamedTuple):
    """A text about a missing input, and the command that creates it."""

    text: str
    command: str


class Suggestion(NamedTuple):
    """A finding with its evidence and advice."""

    title: str
    evidence: str  # The numbers that it rests on
    todo: str
    section: str  # The name of the section that shows it
    gain: str = ""  # A sentence on how much it would gain


class Suggestions(NamedTuple):
    """Findings in order of importance."""

    items: Sequence[Suggestion]


class Commands(NamedTuple):
    """Command lines, each with what it is for."""

    pairs: Sequence[tuple[str, str]]


class Links(NamedTuple):
    """Files and folders beside the page, as texts and addresses relative to it."""

    pairs: Sequence[tuple[str, str]]


class Line(NamedTuple):
    """A line of a `Plot`; points from 0 to 1 in both directions."""

    kind: str  # `first` or `second`, for the colour
    points: Sequence[tuple[float, float]]


class Plot(NamedTuple):
    """A small chart of lines in a square from 0 to 1."""

    label: str  # For screen readers
    lines: Sequence[Line]
    mark: float | None = None  # Where a vertical line is drawn
    axis: str = ""  # Name of the horizontal axis

    def path(self, line: Line) -> str:
        """Return the points for SVG, in thousandths, y downwards."""
        return " ".join(f"{round(x * 1000)},{round(1000 - y * 1000)}" for x, y in line.points)


class Plots(NamedTuple):
    """Small charts in groups, such as one group for each class."""

    groups: Sequence[tuple[str, Sequence[Plot]]]
    caption: str
    fold: str = ""  # The text of the line that unfolds them; empty: they are visible at once


class Matrix(NamedTuple):
    """Counts by row and column, shaded by their share of the row."""

    title: str
    corner: str
    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]
    notes: Sequence[str] = ()

    def shade(self, row: int, column: int) -> str:
        """Return the CSS classes of a cell: `good` on the diagonal, and a level from 0 to 9."""
        total = sum(self.counts[row])
        share = self.counts[row][column] / total if total else 0.0
        # The square root, so that a few boxes of many are visible.
        level = math.ceil(9 * math.sqrt(share))
        return f"{'good' if row == column else 'bad'} level{level}"


class Picture(NamedTuple):
    """A JPEG that is a part of the page, see `jpeg_address`."""

    address: str
    width: int
    height: int
    title: str
    caption: str


class Pictures(NamedTuple):
    """Pictures side by side, with the meaning of the colours in them."""

    items: Sequence[Picture]
    legend: Sequence[tuple[str, str]] = ()  # Colours such as `#3c8ddc`, and their meanings
    fold: str = ""  # As in `Plots`


Block = (
    Table | Chart | Facts | Text | Missing | Suggestions
    | Commands | Links | Plots | Matrix | Pictures
)  # fmt: skip


class Section(NamedTuple):
    """A chapter of the page. `name`: for links to it."""

    name: str
    heading: str
    blocks: Sequence[Block] = ()


def render_page(sections: Sequence[Section], *, title: str, summary: Sequence[str]) -> str:
    """Return the page as HTML; `summary`: sentences at the top."""
    # StrictUndefined: a misspelt name in a template is an error, not an empty text.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    # Hashes instead of 'unsafe-inline', so that a browser does not run what a log smuggles in.
    policy = (
        "default-src 'none'",
        f"style-src '{digest(style)}'",
        f"script-src '{digest(script)}'",
        *("img-src data:", "base-uri 'none'", "form-action 'none'"),
    )
    environment.filters |= {"with_code": with_code, "sentence": sentence}
    environment.globals["plain"] = plain
    # Style and script are not escaped: the policy has the hashes of exactly these texts.
    return environment.get_template("page.html").render(
        sections=sections,
        template=lambda block: f"{type(block).__name__.lower()}.html",
        headings={section.name: section.heading for section in sections},
        title=title,
        summary=summary,
        markup=Markup,
        style=Markup(style),
        script=Markup(script),
        policy="; ".join(policy),
    )


def jpeg_address(content: bytes) -> str:
    """Return the address of a JPEG whose bytes are in the page itself."""
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def harmless(value: object) -> object:
    """Return text without control characters and marks that turn the direction of writing."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def with_code(text: str) -> Markup:
    """Return escaped HTML in which `text between backticks` is code."""
    pieces = enumerate(printable(text).split("`"))
    # Every second piece was between backticks.
    marked = (
        Markup("<code>{}</code>" if place % 2 else "{}").format(piece) for place, piece in pieces
    )
    return Markup("").join(marked)


def digest(text: str) -> str:
    """Return a hash in the notation of a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def sentence(text: str) -> str:
    """Return text as a sentence, with a capital and a full stop; oneDNN keeps its case."""
    begin = text[:1] if text.startswith("oneDNN") else text[:1].upper()
    return f"{begin}{text[1:]}."


def chart(draw: Callable[[], "Figure"], *, name: str, label: str, caption: str) -> Chart:
    """Draw a figure and make it part of the page.

    `name` is this chart's alone; screen readers read the label; the caption is shown below it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font lacks
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
IGNORED_ATTRIBUTES = ("version", "style", "type", "preserveAspectRatio")
FONTS = "DejaVu Sans, Verdana, sans-serif"
"""Verdana is as wide as the font that matplotlib measures with."""
NOT_XML = re.compile(r"[^\t\n\r -\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
NO_BREAK = "\N{NO-BREAK SPACE}"  # Blanks at the beginning of a text are dropped; these are not
DECIMALS = re.compile(r"(\.\d\d)\d+")


def inline_svg(figure: "Figure", *, name: str, label: str) -> str:
    """Return a figure as inline SVG; all its ids get the prefix `name`."""
    # XML has no way to write these characters, and the parser refuses them.
    root = ET.fromstring(NOT_XML.sub("�", as_svg(figure)))
    clean(root, name)
    # Without width and height a browser scales the chart by its viewBox to the page's width.
    width = float(root.attrib.pop("width").removesuffix("pt"))
    root.attrib.pop("height")
    # matplotlib sets joins and caps of lines in a <style> element, which is dropped.
    root.attrib |= {
        "class": "wide" if width > 760 else "narrow",
        "role": "img",
        "aria-label": printable(label),
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return ET.tostring(root, encoding="unicode")


def clean(element: ET.Element, name: str) -> None:
    """Remove disallowed elements and attributes from an element and its descendants, in place."""
    # SVG inside HTML needs no namespaces; ElementTree would write them as `ns0:svg`.
    element.tag = local_name(element.tag)
    assert element.tag in ELEMENTS, f"<{element.tag}> is not an element of charts"
    attributes = {local_name(key): value for key, value in element.attrib.items()}
    # The page's policy forbids `style` attributes; SVG has an attribute for each style.
    styles = [pair.partition(":") for pair in attributes.pop("style", "").split(";")]
    attributes |= {key.strip(): value.strip() for key, _, value in styles if value}
    element.attrib.clear()
    for key, value in attributes.items():
        if key not in IGNORED_ATTRIBUTES:
            assert key in ATTRIBUTES, f"{key}= is not an attribute of charts"
            element.set(key, convert_attribute(key, value, name))
    # A copy, since children are removed in the loop.
    for child in list(element):
        if local_name(child.tag) in DROPPED:
            element.remove(child)
        else:
            clean(child, name)
    text, element.text, element.tail = element.text, None, None
    if element.tag in ("text", "tspan") and text:
        # Blanks between elements only indent, and are dropped; texts of charts keep theirs.
        stripped = printable(text).lstrip(" ")
        element.text = NO_BREAK * (len(text) - len(stripped)) + stripped


def convert_attribute(key: str, value: str, name: str) -> str:
    """Return an attribute's value: ids with the chart's name, paths without the last decimals."""
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        # Rasters are PNG in data URLs. The page must load nothing else.
        assert value.startswith(("#", "data:image/png;base64,"))
        return f"#{name}-{value[1:]}" if value.startswith("#") else value
    if key == "clip-path" or value.startswith("url("):
        return value.replace("url(#", f"url(#{name}-")
    if key == "font-family":
        return FONTS
    if key in ("d", "x", "y"):  # More than hundredths of a point are invisible
        return DECIMALS.sub(r"\1", " ".join(value.split()))
    return value


def local_name(tag: str) -> str:
    """Return a name without its namespace."""
    return tag.rpartition("}")[2]
