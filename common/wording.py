"""Counts and lists in messages."""

from collections.abc import Iterable


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 core`, `1,200 boxes`; the plural has an s."""
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def listed(items: Iterable[str], most: int, *, count: int | None = None) -> str:
    """Return the first items, such as `a, b and 3 more`; `count` is that of all, if it is more."""
    texts = list(items)
    shown = texts[:most]
    hidden = (len(texts) if count is None else count) - len(shown)
    return ", ".join(shown) + (f" and {hidden:,} more" if hidden else "")
