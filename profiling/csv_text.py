"""Tables as CSV."""

import csv
import io
from collections.abc import Iterable


def as_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A header and its rows; what is None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
