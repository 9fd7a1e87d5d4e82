"""Charts in the middle of a page."""

import re
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest

from common.charts import new_figure
from profiling.report.page import chart, clean, inline_svg


def drawn(text: str = "a title") -> str:
    figure = new_figure(width=4, height=3)
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4], linestyle="--", label=text)
    axes.scatter([1, 2], [3, 4])
    axes.imshow([[0, 1], [1, 0]])
    axes.legend()
    return inline_svg(figure, name="first", label=text)


def test_nothing_in_it_needs_a_style_a_script_or_a_namespace() -> None:
    svg = drawn()
    assert svg.startswith("<svg ")
    assert not re.search(r"style|<script|xmlns|xlink|<!|<\?|metadata|on\w+=", svg)


def test_names_are_the_charts_own_and_are_all_there() -> None:
    svg = drawn()
    names = re.findall(r' id="([^"]+)"', svg)
    meant = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    assert len(names) == len(set(names))
    assert all(name.startswith("first-") for name in names)
    assert meant and meant <= set(names)


def test_texts_are_text_and_harmless() -> None:
    text = "  <script>alert('$x$')</script>\x00\x1b & more"
    made = chart(lambda: labelled(text), name="a", label=text, caption="")
    root = ET.fromstring(made.svg)
    shown = [one.text or "" for one in root.iter("text")]
    assert "\u00a0\u00a0<script>alert('$x$')</script>\ufffd\ufffd & more" in shown
    assert "<script" not in made.svg
    assert root.get("role") == "img"


def labelled(text: str) -> "mpl.figure.Figure":
    figure = new_figure(width=4, height=3)
    figure.subplots().set_title(text, loc="left")
    return figure


def test_what_no_chart_is_made_of_is_refused() -> None:
    for markup in ("<svg><script/></svg>", '<svg onload="x"/>', "<svg><foreignObject/></svg>"):
        with pytest.raises(AssertionError, match="in no chart"):
            clean(ET.fromstring(markup), "a")
    with pytest.raises(AssertionError):
        clean(ET.fromstring('<svg><use href="https://example.org/#a"/></svg>'), "a")
