"""The page as text: what it holds is harmless, and its policy is that of its own two parts."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from common.charts import Cell, Column, Table
from profiling.report.page import Block, Facts, Missing, Section, Text, render_page
from tests.profiling.report.logs_by_hand import HOSTILE, hostile_log
from tests.profiling.report.pages import written_page

LOADS = ("src", "href", "action", "data", "poster", "srcset", "xlink:href", "background")


class Elements(HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def page_of(text: str) -> str:
    """Everywhere the same text."""
    table = Table(text, (Column(text, is_number=False, meaning=text), Column(text)),
                  [[f"{text}\n{text}", Cell(text, 1.5)]], totals=[[text, None]],
                  notes=[text])  # fmt: skip
    blocks: list[Block] = [Facts([(text, text)]), Text([text]), Missing(text, text), table]
    return render_page([Section("a", text, blocks)], title=text, summary=[text])


def without_code(elements: list[tuple[str, dict[str, str | None]]]) -> list[tuple[str, list[str]]]:
    """Names with their attributes' names; text between backticks is code, and long facts wide."""
    return [(name, sorted(set(given) - {"class"})) for name, given in elements if name != "code"]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_are_shown_and_do_nothing_wherever_they_stand(text: str) -> None:
    plain, found = (without_code(Elements(page_of(one)).found) for one in ("x", text))
    assert found == plain
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", page_of(text))


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    page = written_page(tmp_path, hostile_log(tmp_path / "a.log")).read_text(encoding="utf-8")
    for name, attributes in Elements(page).found:
        assert name not in ("iframe", "object", "embed", "base", "form", "img", "audio", "video")
        assert not any(key.startswith("on") or key == "style" for key in attributes)
        for key in LOADS:
            assert (attributes.get(key) or "#").startswith(("#", "data:")), (name, attributes)
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_policy_allows_the_pages_own_style_and_script_alone() -> None:
    page = page_of("x")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy[1] and "http" not in policy[1]
    for name in ("style", "script"):
        (content,) = re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
