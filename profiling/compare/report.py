"""A comparison as a person reads it on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling.compare.comparison import Answers, Comparison, Pair, kinds_of
from profiling.onednn_log.log import OneDnnLog
from profiling.significant import significant
from profiling.terminal import say
from retinanet.printable import printable

NONE = "–"
"""A time that was not measured, as there were no calls: 0.00 would say that they were fast."""
LONGEST_HEADING = 14
MOSTLY_DIFFERENT = 0.5
"""Share of the time in questions that one side alone asks, from which a hint is given."""


def print_comparison(console: Console, comparison: Comparison, *, top: int) -> None:
    """What is compared, kinds, calls of one side, then calls of both."""
    for place, side in (("first", comparison.first), ("second", comparison.second)):
        say(console, f"{place + ':':<8}{side.name}; {library_of(side.log)}")
    say(console, "calls and milliseconds are those of a step" if comparison.is_by_step
        else "calls and milliseconds are those of whole logs")  # fmt: skip
    print_kinds(console, comparison)
    only_one, both = comparison.only_one, comparison.both
    if only_one:
        title = f"calls that only one side makes, {shown(only_one, top)}; cost: of those calls"
        console.print(pair_table(only_one[:top], comparison, title=title, with_extra=True))
    if both:
        title = f"calls that both make equally often, {shown(both, top)}"
        console.print(pair_table(both[:top], comparison, title=title, with_extra=False))
    if hint := hint_on_types(comparison):
        say(console, hint)


def library_of(log: OneDnnLog) -> str:
    """Who wrote a log."""
    versions = ", ".join(f"oneDNN {version}" for version in log.versions) or "oneDNN"
    threads = f", {' and '.join(map(str, log.threads))} threads" if log.threads else ""
    return f"{versions}{threads}"


def shown(pairs: Sequence[Pair], top: int) -> str:
    """How many of them are in the table."""
    return f"the {top} costliest of {len(pairs):,}" if len(pairs) > top else f"{len(pairs)}"


def print_kinds(console: Console, comparison: Comparison) -> None:
    """Calls and times by kind and direction, and of all."""
    names = headings(comparison)
    table = table_of("kind", names, last=ratio_heading(names), title="by kind and direction")
    kinds = kinds_of(comparison.pairs)
    for kind in kinds:
        calls, times = (kind.first_calls, kind.second_calls), (kind.first_ms, kind.second_ms)
        cells = cells_of(calls, times, decimals=1)
        table.add_row(Text(printable(kind.name)), *cells, ratio_text(times, names))
    calls, times = (
        (sum(getattr(kind, f"first_{of}") for kind in kinds),
         sum(getattr(kind, f"second_{of}") for kind in kinds))
        for of in ("calls", "ms")
    )  # fmt: skip
    table.add_section()
    table.add_row("total", *cells_of(calls, times, decimals=1), ratio_text(times, names))
    console.print(table)


def cells_of(
    calls: tuple[float, float], times: tuple[float, float], *, decimals: int
) -> tuple[str, str, str, str]:
    """Calls and milliseconds of both sides; a side without calls has no time."""
    counts = (significant(count, 6) for count in calls)
    milliseconds = (
        f"{ms:,.{decimals}f}" if count else NONE for count, ms in zip(calls, times, strict=True)
    )
    return (*counts, *milliseconds)  # type: ignore[return-value]  # two and two


def ratio_text(times: tuple[float, float], names: tuple[str, str]) -> str:
    """`1.23`, or who alone has any."""
    first, second = times
    if first and second:
        return f"{first / second:.2f}"
    return f"only {names[0] if first else names[1]}" if first or second else ""


def ratio_heading(names: tuple[str, str]) -> str:
    """What the ratio is of."""
    return f"{names[0]} /\n{names[1]}"


def headings(comparison: Comparison) -> tuple[str, str]:
    """What columns call both sides: their names, or the ends of long ones."""
    first, second = (
        name if len(name) <= LONGEST_HEADING else f"…{name[1 - LONGEST_HEADING :]}"
        for name in map(printable, (comparison.first.name, comparison.second.name))
    )
    return (first, second) if first != second else ("first", "second")


def table_of(
    first: str, names: tuple[str, str], *, last: str, title: str, show_lines: bool = False
) -> Table:
    """Calls and milliseconds of both sides, between a first and a last column."""
    table = Table(title=title, title_justify="left", show_lines=show_lines)
    table.add_column(first, vertical="bottom")
    left, right = names
    for text in (f"calls\n{left}", f"\n{right}", f"ms\n{left}", f"\n{right}", last):
        table.add_column(Text(text), justify="right", vertical="bottom")
    return table


def pair_table(
    pairs: Sequence[Pair], comparison: Comparison, *, title: str, with_extra: bool
) -> Table:
    """A row for each question; the implementations where they differ."""
    names = headings(comparison)
    last = "cost\nms" if with_extra else ratio_heading(names)
    table = table_of("problem", names, last=last, title=title, show_lines=True)
    for pair in pairs:
        calls, times = (pair.first.calls, pair.second.calls), (pair.first.ms, pair.second.ms)
        last = f"{pair.extra_ms:,.2f}" if with_extra else ratio_text(times, names)
        cells = cells_of(calls, times, decimals=2)
        table.add_row(Text(described(pair), overflow="fold"), *cells, last)
    return table


def described(pair: Pair) -> str:
    """What is asked, and how it is done: once where both do it alike."""
    question = pair.question
    lines = [f"{question.kind} {question.direction}".strip(), question.shape, question.types]
    ways = [way_of(answers) for answers in (pair.first, pair.second) if answers.calls]
    lines += dict.fromkeys(ways)
    return "\n".join(printable(line) for line in lines if line)


def way_of(answers: Answers) -> str:
    """Implementations, and layouts."""
    return f"{', '.join(answers.implementations)}; {', '.join(answers.layouts)}"


def hint_on_types(comparison: Comparison) -> str:
    """What to try when little is alike because numbers have other types."""
    alone = [pair for pair in comparison.pairs if not pair.first.calls or not pair.second.calls]
    total = sum(pair.cost_ms for pair in comparison.pairs)
    if not total or sum(pair.cost_ms for pair in alone) < MOSTLY_DIFFERENT * total:
        return ""
    types = [{pair.question.types for pair in alone if getattr(pair, side).calls}
             for side in ("first", "second")]  # fmt: skip
    if types[0] & types[1] or not all(types):
        return ""
    return "the types of numbers differ; --ignore-types compares shapes alone"
