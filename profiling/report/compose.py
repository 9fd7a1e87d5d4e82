"""From the material to the page."""

from typing import NamedTuple

from profiling.report.material import Material
from profiling.report.page import render_page
from profiling.report.sections.all_sections import all_sections
from profiling.report.sections.what_next import advice_of
from profiling.report.summary import summary_of, title_of


class Composed(NamedTuple):
    """A page, and what it comes to."""

    html: str
    summary: list[str]


def compose(material: Material, *, title: str | None) -> Composed:
    """All findings, chapters and sentences; `title`: None for one of the run's own."""
    advice = advice_of(material)
    cautions = [f"Caution: {caution}." for caution in material.cautions]
    summary = [*cautions, *summary_of(material, advice)]
    sections = all_sections(material, advice)
    return Composed(
        render_page(sections, title=title or title_of(material), summary=summary), summary
    )
