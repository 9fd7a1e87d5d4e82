"""README, CHANGELOG and docs: what they name is there."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, blocks_and_prose

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]

NAMED = re.compile(r"`((?:configs|data|docs|launch|profiling|retinanet|tests)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)\s#]+)")
SECTION = re.compile(r"\]\((?!https?://)([^)\s#]*)#([^)\s]+)\)")


def page_names(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=page_names)
def test_every_file_that_a_page_names_or_links_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in NAMED.findall(text) if not (REPOSITORY / name).exists()]
    missing += [target for target in LINK.findall(text) if not (page.parent / target).exists()]
    assert missing == []


def sections(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab make them."""
    _, prose = blocks_and_prose(page.read_text(encoding="utf-8"))
    headings = [line.lstrip("#").strip() for _, line in prose if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_names)
def test_every_section_that_a_page_links_is_there(page: Path) -> None:
    links = SECTION.findall(page.read_text(encoding="utf-8"))
    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in sections(page.parent / target if target else page)
    ]
    assert missing == []


def test_the_map_of_the_code_names_every_package_of_the_detector() -> None:
    text = (REPOSITORY / "docs" / "code.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in REPOSITORY.glob("retinanet/*/__init__.py")}
    untold = {name for name in packages if f"`retinanet/{name}/`" not in text}
    assert untold == set()
