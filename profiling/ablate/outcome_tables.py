"""An ablation's numbers as tables on a terminal."""

from collections.abc import Sequence

from rich.table import Table

from profiling.ablate.ablation import ChartChoice
from profiling.ablate.outcome import (
    Outcome,
    drawn_quantity,
    numbers_of,
    shown,
    shown_interval,
    spread,
)
from profiling.ablate.result import Result
from profiling.significant import significant


def variants_table(result: Result, choice: ChartChoice) -> Table:
    """A row for each variant that ran: what the chart draws, its spread, memory."""
    quantity, unit = drawn_quantity(result, choice)
    table = Table()
    table.add_column("variant")
    table.add_column("allocator")
    for heading in (f"median {unit}", "lowest–highest", "page faults", "peak MB"):
        table.add_column(heading, justify="right")
    for name in result.definition["variants"]:
        numbers = numbers_of(result, name, quantity=quantity)
        middle, lowest, highest = spread(numbers.values)
        table.add_row(
            name,
            numbers.allocator,
            significant(middle),
            f"{significant(lowest)}–{significant(highest)}",
            "" if numbers.page_faults is None else f"{numbers.page_faults:,.0f}",
            "" if numbers.peak_mb is None else f"{numbers.peak_mb:,.0f}",
        )
    return table


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """A row for each comparison: ours with its interval, the paper's, what to say of it."""
    table = Table()
    table.add_column("what", ratio=3)
    for heading in ("ours", "interval", "paper"):
        table.add_column(heading, justify="right")
    table.add_column("is", no_wrap=True)
    for one in outcomes:
        kind = one.comparison.ratio
        paper = one.comparison.paper
        table.add_row(
            one.what,
            shown(one.ratio.median, kind) if one.ratio else "–",
            shown_interval(one.ratio, kind) if one.ratio else "",
            shown(paper, kind) if paper else "",
            kind if one.ratio else "not measured",
        )
    return table
