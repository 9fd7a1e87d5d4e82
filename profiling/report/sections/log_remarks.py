"""What else a log says: primitives made, implementations passed over, messages, lines left."""

from collections import Counter

from profiling.onednn_log.log import OneDnnLog
from profiling.report.blocks import Block, Cell, Column, Missing, Section, Table, Text
from profiling.report.material import Material
from profiling.report.words import three

MOST = 50


def log_remarks(material: Material) -> Section:
    """Everything that is in no number above."""
    log = material.log
    blocks: list[Block] = [Text([made(log)])] if log.creation_states else []
    if not log.creation_states:
        blocks.append(
            Missing(
                "The log does not tell when primitives are made. oneDNN writes that too with",
                "ONEDNN_VERBOSE=2",
            )
        )
    for caption, counter in (
        ("Why implementations were passed over", log.dispatches),
        ("Errors, warnings and failed checks", log.messages),
    ):
        if counter:
            blocks.append(counted(caption, counter))
    blocks.append(
        not_understood(log) if log.not_understood else Text(["Every line is understood."])
    )
    return Section("log", "What else the log says", blocks)


def made(log: OneDnnLog) -> str:
    """How often primitives were made, and how long that took."""
    states = ", ".join(f"{count:,} {state}" for state, count in log.creation_states.items())
    total = sum(calls.total_ms for calls in log.creations.values())
    return f"Primitives were made: {states}; {three(total)} ms in all."


def counted(caption: str, counter: Counter[str]) -> Table:
    """Texts, the most frequent first."""
    rows = [[Cell(text), Cell(f"{count:,}", count)] for text, count in counter.most_common(MOST)]
    more = len(counter) - MOST
    notes = [f"{more:,} other texts are left out."] if more > 0 else []
    return Table(caption, (Column("text", is_number=False), Column("lines")), rows, notes=notes)


def not_understood(log: OneDnnLog) -> Table:
    """The first lines of which nothing is in any number."""
    rows = [
        [Cell(f"{one.file}:{one.line}"), Cell(one.why), Cell(one.text[:80])]
        for one in log.not_understood
    ]
    more = log.not_understood_count - len(rows)
    return Table(
        "Lines that look like oneDNN's and are not understood",
        (
            Column("line", is_number=False),
            Column("why", is_number=False),
            Column("its beginning", is_number=False),
        ),
        rows,
        notes=[f"And {more:,} more."] if more > 0 else [],
    )
