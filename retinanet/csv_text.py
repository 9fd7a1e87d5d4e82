"""Tables as CSV, of which a spreadsheet takes no cell for a formula."""

import csv
import io
import re
from collections.abc import Iterable

from retinanet.printable import printable

FORMULA = re.compile(r"\s*[=+\-@]")
"""How a cell begins that spreadsheets calculate: names come from logs, which anybody can write."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def as_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A header and its rows; what is None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(harmless, columns))
    writer.writerows(map(harmless, row) for row in rows)
    return text.getvalue()


def harmless(cell: object) -> object:
    """A text without control characters, an apostrophe before what would be a formula; numbers,
    and texts that are numbers, as they are.
    """
    if not isinstance(cell, str):
        return cell
    shown = printable(cell)
    return f"'{shown}" if FORMULA.match(shown) and not NUMBER.fullmatch(shown) else shown
