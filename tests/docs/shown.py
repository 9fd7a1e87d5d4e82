"""What a page shows below a command against what is printed: the words, not the numbers."""

import re
from collections.abc import Sequence

FRAME = "│├┡└┏╭╰╞━─"
"""Lines that begin so are rows of numbers, or the edges of a table."""

COLUMNS = "┃"
NUMBERS = re.compile(r"[\d/…~'\"‘→(\[│].*")
"""From here on a line is another on another machine."""


def missing_lines(shown: Sequence[str], printed: str, *, unlike: Sequence[str] = ()) -> list[str]:
    """Lines of a page that no printed line is like.

    A line is like another when both have the same words before the first number or path; a table is
    when its columns have the same names.

    Args:
        unlike: Beginnings of shown lines that need not be printed.
    """
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    words = set(re.findall(r"[A-Za-z]{3,}", printed))
    return [
        line
        for line in shown
        if not line.startswith((*FRAME, *unlike)) and not is_like_one(line, lines, words)
    ]


def is_like_one(line: str, lines: Sequence[str], words: set[str]) -> bool:
    """Whether a shown line is among the printed ones."""
    if COLUMNS in line:
        return set(re.findall(r"[A-Za-z]{3,}", line)) <= words
    opening = opening_of(line)
    return not opening or any(one.startswith(opening) for one in lines)


def opening_of(line: str) -> str:
    """Its words before the first number."""
    whole = " ".join(line.split())
    cut = NUMBERS.sub("", whole)
    return (cut if cut == whole else cut.rpartition(" ")[0]).strip()
