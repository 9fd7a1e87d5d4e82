"""Compare the words of the output shown on a page with those of real output, without numbers."""

import re
from collections.abc import Sequence

FRAME = "│├┡└┏╭╰╞━─"  # Begins rows of numbers, and the edges of a table
COLUMNS = "┃"
NUMBERS = re.compile(r"[\d/…~'\"‘→(\[│].*")
"""The part of a line that differs between machines."""


def missing_lines(shown: Sequence[str], printed: str, *, unlike: Sequence[str] = ()) -> list[str]:
    """Return the lines of a page that have no counterpart in the output.

    Two lines correspond if they have the same words before the first number or path, and two tables
    if their columns have the same names.

    Args:
        unlike: Beginnings of shown lines that need not be printed.
    """
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    words = set(re.findall(r"[A-Za-z]{3,}", printed))
    return [
        line
        for line in shown
        if not line.startswith((*FRAME, *unlike)) and not is_printed(line, lines, words)
    ]


def is_printed(line: str, lines: Sequence[str], words: set[str]) -> bool:
    """Return whether the output has a shown line."""
    if COLUMNS in line:
        return set(re.findall(r"[A-Za-z]{3,}", line)) <= words
    opening = text_before_number(line)
    return not opening or any(printed.startswith(opening) for printed in lines)


def text_before_number(line: str) -> str:
    """Return the words before the first number."""
    whole = " ".join(line.split())
    cut = NUMBERS.sub("", whole)
    return (cut if cut == whole else cut.rpartition(" ")[0]).strip()
