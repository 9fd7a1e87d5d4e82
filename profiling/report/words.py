"""Numbers as the page has them."""

from profiling.report.blocks import Cell
from profiling.significant import significant


def three(value: float) -> str:
    """With about three figures and never an exponent: `12,346`, `12.3`, `0.012`."""
    if value == 0:
        return "0"
    if 0 < value < 0.0005:
        return "< 0.001"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{decimals}f}"


def number(value: float | None) -> Cell:
    """A cell of a column of numbers, empty where there is none."""
    return Cell("") if value is None else Cell(three(value), value)


def count(value: float) -> Cell:
    """Of calls: whole where it is, else a mean."""
    return Cell(f"{value:,.0f}" if value == round(value) else three(value), value)


def percent(value: float | None) -> Cell:
    """A share, 0 to 1."""
    return Cell("") if value is None else Cell(f"{value:.1%}", value)


def times(count: float) -> str:
    """`1 call`, `12.5 calls`."""
    return "1 call" if count == 1 else f"{significant(count)} calls"


def sentence(text: str) -> str:
    """With a capital, and a full stop; oneDNN stays as it is written."""
    begin = text[:1] if text.startswith("oneDNN") else text[:1].upper()
    return f"{begin}{text[1:]}."


def listed(words: list[str], most: int) -> str:
    """The first of them with commas, and how many more there are."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
