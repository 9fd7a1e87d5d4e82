"""matplotlib's SVG as a part of a page: no styles of its own, no names that clash, nothing foreign.

A page that allows neither inline styles nor scripts can hold it: styles become attributes, and only
the elements and attributes that charts are made of may be there.
"""

import re
from xml.etree import ElementTree as ET

from matplotlib.figure import Figure

from profiling.pictures import as_svg
from retinanet.printable import printable

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
