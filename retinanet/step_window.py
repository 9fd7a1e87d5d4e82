"""A window of a run's steps, as a configuration gives it: `20-22`, or `20`."""

import re

FORM = re.compile(r"([1-9][0-9]{0,11})(?:-([1-9][0-9]{0,11}))?")
MOST_STEPS = 10_000
"""Of a window: a step's records take about a megabyte."""


def is_window(text: str) -> bool:
    """Whether it is 1 to `MOST_STEPS` steps, counted from 1, and the last not before the first."""
    return bool(FORM.fullmatch(text)) and 0 < len(window_of(text)) <= MOST_STEPS


def window_of(text: str | None) -> range:
    """The steps of a window that `is_window`; none at all for None."""
    if text is None:
        return range(0)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
