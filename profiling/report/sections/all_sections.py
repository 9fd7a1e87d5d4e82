"""The page's chapters in the order in which a person reads them."""

from collections.abc import Sequence

from profiling.report.advice import Advice
from profiling.report.blocks import Section, Text
from profiling.report.material import Material
from profiling.report.sections.comparison import comparison_section
from profiling.report.sections.efficiency import efficiency_section
from profiling.report.sections.log_remarks import log_remarks
from profiling.report.sections.problems import problems
from profiling.report.sections.ranks import ranks_section
from profiling.report.sections.trace import trace_section
from profiling.report.sections.what_it_could_be import what_it_could_be
from profiling.report.sections.what_next import what_next
from profiling.report.sections.what_ran import what_ran
from profiling.report.sections.where_time_goes import where_time_goes


def all_sections(material: Material, advice: Sequence[Advice]) -> list[Section]:
    """What ran, where time goes, what it could be, what to look at next, and all in numbers."""
    if not material.measured.problems:
        nothing = Text(["The log has no whole step with primitives of oneDNN in it."])
        return [what_ran(material), Section("kinds", "Where oneDNN's time goes", [nothing]),
                ranks_section(material), log_remarks(material)]  # fmt: skip
    return [
        what_ran(material),
        *where_time_goes(material),
        trace_section(material),
        what_it_could_be(material),
        efficiency_section(material),
        comparison_section(material),
        what_next(material, advice),
        problems(material),
        ranks_section(material),
        log_remarks(material),
    ]
