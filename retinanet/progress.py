"""Progress on long work: a bar on a terminal, plain lines where there is none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from retinanet.printable import printable

SECONDS_BETWEEN_LINES = 15.0
"""A log file wants a line now and then, not ten a second."""

MEGABYTE = 1_000_000
SHOWN_FROM = 20 * MEGABYTE

Advance = Callable[[int, str], None]
"""Called as `advance(done, note)`: how much is done in all, and what to say of it."""


@contextmanager
def progress(console: Console, title: str, *, total: int, start: int = 0) -> Iterator[Advance]:
    """Show how far a piece of work has come while the context lasts.

    Args:
        console: Where to; decides by itself whether it is a terminal.
        title: What is being done, with its unit.
        total: How much there is to do.
        start: How much was done before.
    """
    show = bar(console, title, total=total, start=start) if console.is_terminal else None
    if show is None:
        yield lines(console, title, total=total, start=start)
        return
    with show as display:
        task = display.add_task(printable(title), total=total, completed=start, note="")
        yield lambda done, note: display.update(task, completed=done, note=printable(note))


@contextmanager
def progress_in_bytes(console: Console, title: str, *, total: int) -> Iterator[Advance]:
    """`progress` of reading or writing, told in bytes and shown in megabytes.

    Less than a second's worth of it is not shown.
    """
    if total < SHOWN_FROM:
        yield lambda done, note: None
        return
    with progress(console, f"{title} [MB]", total=total // MEGABYTE) as advance:
        yield lambda done, note: advance(done // MEGABYTE, note)


def bar(console: Console, title: str, *, total: int, start: int) -> Progress:
    """The bar with its columns: amount, time left, note."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        refresh_per_second=4,
    )


def lines(console: Console, title: str, *, total: int, start: int) -> Advance:
    """A line at the first call, at the last, and every `SECONDS_BETWEEN_LINES` between."""
    began = time.monotonic()
    last_shown = -SECONDS_BETWEEN_LINES
    is_over = False

    def advance(done: int, note: str) -> None:
        nonlocal last_shown, is_over
        now = time.monotonic() - began
        if is_over:
            return
        is_over = done >= total
        if done < total and now - last_shown < SECONDS_BETWEEN_LINES:
            return
        last_shown = now
        left = now / max(1, done - start) * (total - done)
        text = f"{title} {done}/{total}  {clock(left)} left  {note}"
        console.print(text.rstrip(), highlight=False, soft_wrap=True)

    return advance


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
