"""Files, links and sections that README, CHANGELOG and docs name exist."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, blocks_and_prose

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]

NAMED = re.compile(r"`((?:configs|data|docs|launch|profiling|retinanet|tests)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)\s#]+)")
SECTION = re.compile(r"\]\((?!https?://)([^)\s#]*)#([^)\s]+)\)")


def page_name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in NAMED.findall(text) if not (REPOSITORY / name).exists()]
    missing += [target for target in LINK.findall(text) if not (page.parent / target).exists()]
    assert missing == []


def sections(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and GitLab make them."""
    _, prose = blocks_and_prose(page.read_text(encoding="utf-8"))
    headings = [line.lstrip("#").strip() for _, line in prose if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_sections_that_a_page_links_exist(page: Path) -> None:
    links = SECTION.findall(page.read_text(encoding="utf-8"))
    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in sections(page.parent / target if target else page)
    ]
    assert missing == []


def test_code_page_names_every_package_of_retinanet() -> None:
    text = (REPOSITORY / "docs" / "code.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in REPOSITORY.glob("retinanet/*/__init__.py")}
    assert {name for name in packages if f"`retinanet/{name}/`" not in text} == set()
