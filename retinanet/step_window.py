"""A window of a run's steps, as a configuration gives it: `20-22`, or `20`."""

import re

FORM = re.compile(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?")


def is_window(text: str) -> bool:
    """Whether it is one step or more, counted from 1, and the last not before the first."""
    return bool(FORM.fullmatch(text)) and len(window_of(text)) > 0


def window_of(text: str | None) -> range:
    """The steps of a window that `is_window`; none at all for None."""
    if text is None:
        return range(0)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
