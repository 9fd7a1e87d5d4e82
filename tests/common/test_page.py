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
    Commands,
    Facts,
    Line,
    Links,
    Matrix,
    Missing,
    Picture,
    Pictures,
    Plot,
    Plots,
    Section,
    Text,
    chart,
    clean,
    inline_svg,
    jpeg_address,
    render_page,
    sentence,
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


def test_sentence_begins_with_a_capital_but_for_onednn() -> None:
    assert [sentence("reorders"), sentence("oneDNN")] == ["Reorders.", "oneDNN."]


def test_matrix_is_shaded_by_the_share_of_its_row() -> None:
    matrix = Matrix("m", "c", ["a", "b", "none"], ["a", "b", "missed"],
                    [[90, 10, 0], [0, 0, 0], [1, 99, 0]])  # fmt: skip
    assert [matrix.shade(0, place) for place in range(3)] == [
        "good level9", "bad level3", "bad level0"
    ]  # fmt: skip
    assert [matrix.shade(1, 1), matrix.shade(2, 0)] == ["good level0", "bad level1"]
    page = render_page([Section("s", "S", [matrix])], title="t", summary=[])
    assert '<td class="number good level9">90</td>' in page
    assert '<td class="number bad level0"></td>' in page  # No zeros, which would hide the others
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)
    assert style and all(f".{kind}.level{n} " in style[1] for kind in ("good", "bad")
                         for n in range(1, 10))  # fmt: skip


def test_plot_has_its_lines_upwards_and_its_mark() -> None:
    plot = Plot("a plot", [Line("first", [(0, 1), (0.25, 0.5), (1, 0)])], mark=0.3, axis="x")
    page = render_page(
        [Section("s", "S", [Plots([("a group", [plot])], "caption", fold="more")])],
        title="t", summary=[],
    )  # fmt: skip
    assert 'points="0,0 250,500 1000,1000"' in page and 'd="M300 0V1000"' in page
    assert "<summary>more</summary>" in page and 'aria-label="a plot"' in page


def test_pictures_links_and_commands_are_escaped() -> None:
    harm = '"><script>alert(1)</script>'
    blocks: list[Block] = [
        Pictures([Picture(jpeg_address(b"\xff\xd8"), 4, 3, harm, harm)], [("#123456", harm)]),
        Links([(harm, "a%20b")]),
        Commands([(harm, harm)]),
    ]
    page = render_page([Section("s", "S", blocks)], title="t", summary=[])
    assert "<script>alert" not in page and 'src="data:image/jpeg;base64,/9g="' in page
    assert page.count("&lt;script&gt;alert(1)") == 8
    assert '<a href="a%20b">' in page and 'width="4" height="3"' in page
