"""The page as text: escaping, charts as SVG, its policy, and the format of numbers."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from common.charts import Cell, Column, Table, new_figure
from common.page import (
    Block,
    Facts,
    Missing,
    Section,
    Text,
    chart,
    clean,
    count,
    inline_svg,
    listed,
    render_page,
    sentence,
    three,
)
from tests.profiling.report.example_logs import HOSTILE, hostile_log, write_page

LOADS = ("src", "href", "action", "data", "poster", "srcset", "xlink:href", "background")


class Elements(HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    @property
    def structure(self) -> list[tuple[str, list[str]]]:
        """Names of elements and attributes; without `code` (from backticks) and classes."""
        named = ((name, sorted(set(given) - {"class"})) for name, given in self.elements)
        return [item for item in named if item[0] != "code"]


def render(text: str) -> str:
    """Return a page with the text in all places."""
    table = Table(text, (Column(text, is_number=False, meaning=text), Column(text)),
                  [[f"{text}\n{text}", Cell(text, 1.5)]], totals=[[text, None]],
                  notes=[text])  # fmt: skip
    blocks: list[Block] = [Facts([(text, text)]), Text([text]), Missing(text, text), table]
    return render_page([Section("a", text, blocks)], title=text, summary=[text])


@pytest.mark.parametrize("text", HOSTILE)
def test_harmful_text_is_escaped_everywhere(text: str) -> None:
    assert Elements(render(text)).structure == Elements(render("x")).structure
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", render(text))


@pytest.mark.slow
def test_page_loads_nothing(tmp_path: Path) -> None:
    log = hostile_log(tmp_path / "a.log")
    page = write_page(tmp_path, log).read_text(encoding="utf-8")
    for name, attributes in Elements(page).elements:
        assert name not in ("iframe", "object", "embed", "base", "form", "img", "audio", "video")
        assert not any(key.startswith("on") or key == "style" for key in attributes)
        for key in LOADS:
            assert (attributes.get(key) or "#").startswith(("#", "data:")), (name, attributes)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "&lt;img src=x onerror=alert(1)&gt;" in page  # Shown as text
    assert "&lt;b onclick=alert(6)&gt;" in page and "{{ 7 * 7 }}${alert(4)}" in page
    assert "1 of 9 oneDNN lines" in page


def test_policy_allows_only_the_pages_style_and_script() -> None:
    page = render("x")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy[1] and "http" not in policy[1]
    for name in ("style", "script"):
        (content,) = re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"


def test_chart_is_plain_svg_with_ids_of_its_own() -> None:
    figure = new_figure(width=4, height=3)
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4], linestyle="--", label="a title")
    axes.scatter([1, 2], [3, 4])
    axes.imshow([[0, 1], [1, 0]])
    axes.legend()
    svg = inline_svg(figure, name="first", label="a title")
    assert svg.startswith("<svg ")
    assert not re.search(r"style|<script|xmlns|xlink|<!|<\?|metadata|on\w+=", svg)
    ids = re.findall(r' id="([^"]+)"', svg)
    used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    assert len(ids) == len(set(ids))
    assert all(name.startswith("first-") for name in ids)
    assert used and used <= set(ids)


def test_chart_texts_are_escaped() -> None:
    text = "  <script>alert('$x$')</script>\x00\x1b & more"
    figure = new_figure(width=4, height=3)
    figure.subplots().set_title(text, loc="left")
    svg = chart(lambda: figure, name="a", label=text, caption="").svg
    root = ET.fromstring(svg)
    texts = [element.text or "" for element in root.iter("text")]
    assert "\u00a0\u00a0<script>alert('$x$')</script>\ufffd\ufffd & more" in texts
    assert "<script" not in svg
    assert root.get("role") == "img"


@pytest.mark.parametrize(
    "markup",
    [
        "<script/>",
        '<g onload="x"/>',
        "<foreignObject/>",
        '<use href="https://example.org/#a"/>',
    ],
)
def test_unknown_elements_and_attributes_of_charts_fail(markup: str) -> None:
    with pytest.raises(AssertionError):
        clean(ET.fromstring(f"<svg>{markup}</svg>"), "a")


def test_numbers_have_three_digits_and_no_exponent() -> None:
    values = (0, 0.0004, 0.0123, 1.234, 12.34, 123.4, 1234567.8, -12.34)
    texts = ["0", "< 0.001", "0.012", "1.23", "12.3", "123", "1,234,568", "-12.3"]
    assert list(map(three, values)) == texts
    assert (count(3.0), count(2.5)) == ("3", "2.50")
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert [sentence("reorders"), sentence("oneDNN")] == ["Reorders.", "oneDNN."]
