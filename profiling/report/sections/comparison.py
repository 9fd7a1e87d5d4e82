"""The log against a reference."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from profiling.compare.chart import draw_comparison
from profiling.compare.comparison import Comparison, Pair, kinds_of
from profiling.compare.report import hint_on_types, library_of, way_of
from profiling.report.advice_on_others import ALIKE, alike_share
from profiling.report.blocks import Block, Cell, Column, Missing, Section, Table, Text
from profiling.report.drawing import chart
from profiling.report.material import Material
from profiling.report.words import count, number
from profiling.significant import significant

MOST = 100
"""Rows of a table."""


def comparison_section(material: Material) -> Section:
    """Kinds, calls that only one side makes, calls that both make."""
    heading = "Against the reference"
    found = material.comparison
    if found is None:
        missing = Missing(
            "Another log shows what this one does more, or slower: an earlier version, another "
            "model, another machine.",
            "--reference OTHER.log",
        )
        return Section("comparison", heading, [missing])
    unit = "a step" if found.is_by_step else "in the log"
    blocks: list[Block] = [Text(sides(found, unit)), comparison_chart(found), kinds_table(found)]
    if found.only_one:
        caption = "Calls that only one side makes, or makes more of"
        blocks.append(pairs_table(found.only_one, caption=caption, with_extra=True))
    if found.both:
        caption = "Calls that both sides make equally often"
        blocks.append(pairs_table(found.both, caption=caption, with_extra=False))
    return Section("comparison", heading, blocks)


def sides(found: Comparison, unit: str) -> list[str]:
    """Who is who."""
    lines = [
        f"This: {found.first.name}; {library_of(found.first.log)}. Reference: "
        f"{found.second.name}; {library_of(found.second.log)}. Calls and times are those "
        f"{unit}."
    ]
    alike = alike_share(found)
    if alike < ALIKE:
        lines.append(
            f"They have little in common: only {alike:.0%} of this log's time is in problems that "
            "the reference has too."
        )
    if hint_on_types(found):
        lines.append(
            "The types of numbers differ, so that little is alike: `python -m profiling compare "
            "--ignore-types` compares shapes alone."
        )
    return lines


def comparison_chart(found: Comparison) -> Block:
    """Bars of both sides."""
    spoken = "; ".join(
        f"{kind.name} {significant(kind.first_ms)} against {significant(kind.second_ms)} ms"
        for kind in kinds_of(found.pairs)[:8]
    )

    def draw() -> Figure:
        figure = draw_comparison(found)
        figure.suptitle("")
        return figure

    return chart(
        draw,
        name="comparison",
        label=f"Bars of both sides: {spoken}.",
        caption="Left: time by kind and direction. Right: what the calls cost that only one side "
        "makes.",
    )


def kinds_table(found: Comparison) -> Table:
    """Calls and times by kind and direction."""
    kinds = kinds_of(found.pairs)
    rows = [
        both(kind.name, (kind.first_calls, kind.second_calls), (kind.first_ms, kind.second_ms))
        for kind in kinds
    ]
    calls = sum(kind.first_calls for kind in kinds), sum(kind.second_calls for kind in kinds)
    times = sum(kind.first_ms for kind in kinds), sum(kind.second_ms for kind in kinds)
    return Table(
        "By kind and direction",
        columns("kind", "this / reference"),
        rows,
        totals=[both("all", calls, times)],
    )


def columns(first: str, last: str) -> list[Column]:
    """Of a table with calls and times of both sides."""
    names = ("calls, this", "calls, reference", "ms, this", "ms, reference", last)
    return [Column(first, is_number=False), *map(Column, names)]


def both(name: str, calls: tuple[float, float], times: tuple[float, float]) -> list[Cell]:
    """Calls and times of both sides, and the times' ratio; a side without calls has no time."""
    first, second = times
    if first and second:
        ratio = Cell(f"{first / second:.2f}", first / second)
    else:
        ratio = Cell("only this" if calls[0] else "only the reference")
    shown = [number(ms if of_side else None) for of_side, ms in zip(calls, times, strict=True)]
    return [Cell(name), *map(count, calls), *shown, ratio]


def pairs_table(pairs: Sequence[Pair], *, caption: str, with_extra: bool) -> Table:
    """A row for each question."""
    rows = []
    for pair in pairs[:MOST]:
        question = pair.question
        name = f"{question.kind} {question.direction}".strip()
        calls, times = (pair.first.calls, pair.second.calls), (pair.first.ms, pair.second.ms)
        row = both(name, calls, times)
        ways = dict.fromkeys(way_of(one) for one in (pair.first, pair.second) if one.calls)
        details = tuple(filter(None, (question.shape, question.types, *ways)))
        last = number(pair.extra_ms) if with_extra else row[-1]
        rows.append([Cell(name, details=details), *row[1:-1], last])
    more = len(pairs) - MOST
    notes = [f"The {MOST} costliest of {len(pairs):,} are shown; `python -m profiling compare "
             "--out DIR` writes all."] if more > 0 else []  # fmt: skip
    heading = "cost of these calls, ms" if with_extra else "this / reference"
    return Table(caption, columns("problem", heading), rows, notes=notes)
