"""A comparison as a person reads it on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling.compare.comparison import Answers, Comparison, Pair, kinds_of
from profiling.onednn_log.log import OneDnnLog
from profiling.terminal import say
from retinanet.printable import printable

MOSTLY_DIFFERENT = 0.5
"""Share of the time in questions that one side alone asks, from which a hint is given."""


def print_comparison(console: Console, comparison: Comparison, *, top: int) -> None:
    """What is compared, kinds, calls of one side, then calls of both."""
    for place, side in (("left", comparison.first), ("right", comparison.second)):
        say(console, f"{place + ':':<7}{side.name}; {library_of(side.log)}")
    say(console, "calls and milliseconds are those of a step" if comparison.is_by_step
        else "calls and milliseconds are those of whole logs")  # fmt: skip
    print_kinds(console, comparison)
    only_one, both = comparison.only_one, comparison.both
    if only_one:
        title = f"calls that only one side makes, {shown(only_one, top)}; cost: of those calls"
        console.print(pair_table(only_one[:top], title=title, with_extra=True))
    if both:
        title = f"calls that both make equally often, {shown(both, top)}"
        console.print(pair_table(both[:top], title=title, with_extra=False))
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
    table = table_of("kind", last="left /\nright", title="by kind and direction")
    kinds = kinds_of(comparison.pairs)
    for kind in kinds:
        table.add_row(
            Text(printable(kind.name)),
            f"{kind.first_calls:,.6g}",
            f"{kind.second_calls:,.6g}",
            f"{kind.first_ms:,.1f}",
            f"{kind.second_ms:,.1f}",
            ratio_text(kind.first_ms, kind.second_ms),
        )
    totals = [sum(getattr(kind, name) for kind in kinds)
              for name in ("first_calls", "second_calls", "first_ms", "second_ms")]  # fmt: skip
    table.add_section()
    table.add_row("total", f"{totals[0]:,.6g}", f"{totals[1]:,.6g}", f"{totals[2]:,.1f}",
                  f"{totals[3]:,.1f}", ratio_text(totals[2], totals[3]))  # fmt: skip
    console.print(table)


def ratio_text(first: float, second: float) -> str:
    """`1.23`, or who alone has any."""
    if second:
        return f"{first / second:.2f}"
    return "only left" if first else ""


def table_of(first: str, *, last: str, title: str, show_lines: bool = False) -> Table:
    """Calls and milliseconds of both sides, between a first and a last column."""
    table = Table(title=title, title_justify="left", show_lines=show_lines)
    table.add_column(first, vertical="bottom")
    for heading in ("calls\nleft", "\nright", "ms\nleft", "\nright", last):
        table.add_column(heading, justify="right", vertical="bottom")
    return table


def pair_table(pairs: Sequence[Pair], *, title: str, with_extra: bool) -> Table:
    """A row for each question; the implementations where they differ."""
    last = "cost\nms" if with_extra else "left /\nright"
    table = table_of("problem", last=last, title=title, show_lines=True)
    for pair in pairs:
        last = f"{pair.extra_ms:,.2f}" if with_extra else ratio_text(pair.first.ms, pair.second.ms)
        table.add_row(
            Text(described(pair), overflow="fold"),
            f"{pair.first.calls:,.6g}",
            f"{pair.second.calls:,.6g}",
            f"{pair.first.ms:,.2f}",
            f"{pair.second.ms:,.2f}",
            last,
        )
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
