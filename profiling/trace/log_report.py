"""oneDNN's log beside a trace as a person reads them."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling.terminal import say
from profiling.trace.analysis import Analysis
from profiling.trace.beside_log import BesideLog
from profiling.trace.categories import Category
from profiling.trace.report import milliseconds, times_of
from retinanet.printable import printable

KINDS = 8
"""Kinds of primitives that are shown of a log."""


def print_beside_log(console: Console, analysis: Analysis, beside: BesideLog) -> None:
    """oneDNN's own time beside that of the operators that call it."""
    table = Table("phase", title="oneDNN's log beside the trace (ms)", title_justify="left")
    for heading in ("wall time", "oneDNN itself\n(log)", "share", "operators that\ncall oneDNN",
                    "matrix\nproducts"):  # fmt: skip
        table.add_column(heading, justify="right", vertical="bottom")
    for phase in (*beside.log_ms, None):
        if phase is None:
            table.add_section()
        log = beside.total_ms if phase is None else beside.log_ms[phase]
        wall = times_of(analysis, phase)[0]
        parts = [analysis.category_ns(one, phase) / 1e6 / analysis.count
                 for one in (Category.ONEDNN, Category.PRODUCTS)]  # fmt: skip
        table.add_row(Text(printable(phase or "all")), milliseconds(wall), milliseconds(log),
                      f"{log / wall:.1%}", *map(milliseconds, parts))  # fmt: skip
    console.print(table)
    kinds = list(beside.kinds_ms.items())
    said = ", ".join(f"{kind} {milliseconds(time)}" for kind, time in kinds[:KINDS])
    more = f", {len(kinds) - KINDS} more kinds" if len(kinds) > KINDS else ""
    say(console, f"oneDNN itself: {printable(said)}{more}")
    if beside.other_ms:
        say(
            console,
            f"note: {milliseconds(beside.other_ms)} ms of the log are in no phase of the trace",
        )
    if not beside.has_steps:
        say(console, "note: the log marks no steps; it was taken as a whole")
