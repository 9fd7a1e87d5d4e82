"""Tables as CSV, of which a spreadsheet takes no cell for a formula."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from retinanet.printable import printable

FORMULA = re.compile(r"\s*[=+\-@]")
"""How a cell begins that spreadsheets calculate: names come from logs, which anybody can write."""
ROWS_AT_A_TIME = 1000
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def as_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A header and its rows; what is None is empty."""
    return b"".join(csv_parts(columns, rows)).decode()


def csv_parts(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[bytes]:
    """Yield the same in UTF-8, some rows at a time, for what is too large to be in memory."""
    lines = chain([columns], rows)
    while some := list(islice(lines, ROWS_AT_A_TIME)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(harmless, row) for row in some)
        yield text.getvalue().encode()


def harmless(cell: object) -> object:
    """A text without control characters, an apostrophe before what would be a formula; numbers,
    and texts that are numbers, as they are.
    """
    if not isinstance(cell, str):
        return cell
    shown = printable(cell)
    return f"'{shown}" if FORMULA.match(shown) and not NUMBER.fullmatch(shown) else shown
