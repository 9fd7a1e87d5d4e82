"""The report's chapters, for a browser and for Markdown alike."""

from profiling.ablate.charts.picture import picture
from profiling.ablate.outcome import (
    NAMED,
    Outcome,
    by_reason,
    drawn_quantity,
    numbers_of,
    shown,
    shown_interval,
    spread,
)
from profiling.ablate.report_words import (
    METHOD,
    calls_sentence,
    holding,
    remarks,
    verdict,
)
from profiling.ablate.result import Result
from profiling.ablate.statistics import Ratio
from profiling.ablate.study import Row, Study, machine_of
from profiling.report.blocks import Block, Cell, Column, Facts, Missing, Section, Table, Text
from profiling.report.drawing import chart
from profiling.report.words import listed, sentence, three

LEFT = {
    "bars": "medians, a dot for each round",
    "shares": "medians of what each part takes",
    "curves": "medians, a thin line for each round",
    "grid": "medians, by ranks",
    "points": "published runs",
}
"""What the left half of a picture shows, by the kind of chart."""


def sections_of(study: Study) -> list[Section]:
    """All comparisons, a chapter for each ablation, the method, the machine."""
    return [
        Section("all", "All comparisons", all_blocks(study)),
        *(row_section(row) for row in study.rows),
        Section("method", "How it was measured", [Text(METHOD)]),
        Section("machine", "On what", [Facts(list(machine_of(study.results).items()))]),
    ]


def all_blocks(study: Study) -> list[Block]:
    """A row for every comparison, and what could not be measured."""
    columns = [
        Column("ablation", is_number=False),
        Column("what", is_number=False),
        Column("ours", meaning="the median of the rounds' ratios"),
        Column("interval", is_number=False),
        Column("paper"),
        Column("is", is_number=False, meaning="in which terms both are"),
        Column("allocator", is_number=False),
        Column("second run"),
        Column("holds", is_number=False, meaning="whether a second run has the same sign and size"),
    ]
    rows = [comparison_cells(row, one) for row in study.rows for one in row.outcomes]
    missing = [
        f"{sentence(reason)} {listed(names, NAMED)}" for reason, names in study.left_out.items()
    ]
    return [
        Table("Every comparison, beside the paper's figure", columns, rows),
        *([Text(["What this machine lacks:", *missing])] if missing else []),
    ]


def comparison_cells(row: Row, one: Outcome) -> list[Cell]:
    """A comparison's line."""
    kind, paper = one.comparison.ratio, one.comparison.paper
    return [
        Cell(row.name),
        Cell(one.what),
        ratio_cell(one.ratio, kind, otherwise="–"),
        Cell(shown_interval(one.ratio, kind) if one.ratio else ""),
        Cell(shown(paper, kind), paper) if paper else Cell(""),
        Cell(kind if one.ratio else "not measured"),
        Cell(row.allocators_of(one)),
        ratio_cell(one.again, kind),
        Cell(holding(one)),
    ]


def ratio_cell(ratio: Ratio | None, kind: str, *, otherwise: str = "") -> Cell:
    """A median in its terms."""
    return Cell(shown(ratio.median, kind), ratio.median) if ratio else Cell(otherwise)


def row_section(row: Row) -> Section:
    """A chapter: the question, the picture, the sentences, the variants, the command."""
    ablation = row.ablation
    blocks: list[Block] = [
        Text([f"{ablation.question} {ablation.source}: {ablation.says}."]),
    ]
    result = row.result
    if result is not None and row.is_measured:
        left = LEFT[ablation.chart.kind]
        blocks.append(
            chart(
                lambda: picture(ablation, result, row.outcomes),
                name=row.name,
                label=ablation.question,
                caption=f"Left: {left}. Right: ratios with their intervals.",
            )
        )
    sentences = [verdict(one) for one in row.outcomes]
    blocks.append(Text([*sentences, *filter(None, [calls_sentence(row)]), *remarks(row)]))
    if result is not None and row.is_measured:
        blocks.append(variants_table(result, row))
    if result is None:
        blocks.append(Missing("Not measured yet:", row.command))
    else:
        blocks.append(Facts([("measured", result.ended), ("command", result.command)]))
    return Section(row.name, row.name, blocks)


def variants_table(result: Result, row: Row) -> Table:
    """A row for each variant."""
    quantity, unit = drawn_quantity(result, row.ablation.chart)
    columns = [
        Column("variant", is_number=False),
        Column("what it is", is_number=False),
        Column("allocator", is_number=False),
        *map(Column, (f"median {unit}", "lowest", "highest", "page faults", "peak MB", "rounds")),
    ]
    rows = []
    for name in result.definition["variants"]:
        numbers = numbers_of(result, name, quantity=quantity)
        faults, peak = numbers.page_faults, numbers.peak_mb
        rows.append(
            [
                Cell(name),
                Cell(row.ablation.variants[name].about),
                Cell(numbers.allocator),
                *(Cell(three(value), value) for value in spread(numbers.values)),
                Cell("") if faults is None else Cell(f"{faults:,.0f}", faults),
                Cell("") if peak is None else Cell(f"{peak:,.0f}", peak),
                Cell(str(len(numbers.values)), len(numbers.values)),
            ]
        )
    notes = [
        f"Not run: {listed(names, NAMED)}: {reason}."
        for reason, names in by_reason(result.left_out).items()
    ]
    return Table("Who ran", columns, rows, notes=notes)
