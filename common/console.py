"""Output to a terminal: printable text, progress, numbers for people, redirected output.

Text from files and logs is printed literally: no markup, no control characters. Progress on long
work is a bar on a terminal, and plain lines elsewhere. Output of C code to a file descriptor can be
redirected.
"""

import ctypes
import io
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from functools import partial

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from common.errors import printable
from common.streams import ERRORS, OUTPUT, LastingOutput, lasting, text_stream


def make_console(*, quiet: bool = False, stderr: bool = False, pipe_width: int = 120) -> Console:
    """Return a console that prints text as it is: `[red]` is no markup, `:dog:` no emoji, and of
    control characters and escape sequences only its own reach the terminal.

    `pipe_width` is the width in columns where there is no terminal.
    """
    console = Console(highlight=False, markup=False, emoji=False, quiet=quiet, stderr=stderr)
    if not console.is_terminal:
        console.width = pipe_width
    console.push_render_hook(PrintableOnly())
    return console


class PrintableOnly(RenderHook):
    """Wraps whatever is printed, tables included."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return the renderables with unprintable characters replaced."""
        return [PrintableSegments(renderable) for renderable in renderables]


class PrintableSegments:
    """A renderable with printable text; colours and cursor movements are unchanged."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Segments hold colours apart from their text, and rich's cursor movements in `control`. So
        # every control character in the text is foreign.
        for segment in console.render(self.inner, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                # A line break counts as unprintable, but belongs to the layout.
                lines = map(printable, segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)


SECONDS_BETWEEN_LINES = 15.0  # of progress in a log file
MEGABYTE = 1_000_000
SHOWN_FROM = 20 * MEGABYTE

Advance = Callable[[int, str], None]
"""Called as `advance(done, note)`: how much is done in all, and a note to show beside it."""


def ignore_progress(done: int, note: str) -> None:
    """Show no progress."""


@contextmanager
def progress(
    console: Console, title: str, *, total: int | None, start: int = 0
) -> Iterator[Advance]:
    """Show the progress of work with its title and unit; `start` of `total` was done before.

    `total`: None if it is unknown.
    """
    if not console.is_terminal:
        yield lines(console, title, total=total, start=start)
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        refresh_per_second=4,
    ) as display:
        task = display.add_task(printable(title), total=total, completed=start, note="")
        yield lambda done, note: display.update(task, completed=done, note=printable(note))


@contextmanager
def progress_in_bytes(console: Console, title: str, *, total: int) -> Iterator[Advance]:
    """Show progress counted in bytes, in megabytes, unless it takes less than a second."""
    if total < SHOWN_FROM:
        yield lambda done, note: None
        return
    with progress(console, f"{title} [MB]", total=total // MEGABYTE) as advance:
        yield lambda done, note: advance(done // MEGABYTE, note)


def lines(console: Console, title: str, *, total: int | None, start: int) -> Advance:
    """Return a function that prints a line at the first and last call, and periodically between."""
    began = time.monotonic()
    last_shown = -SECONDS_BETWEEN_LINES
    is_over = False

    def advance(done: int, note: str) -> None:
        nonlocal last_shown, is_over
        now = time.monotonic() - began
        if is_over:
            return
        is_over = total is not None and done >= total
        if not is_over and now - last_shown < SECONDS_BETWEEN_LINES:
            return
        last_shown = now
        left = ""
        if total is not None:
            left = f"/{total}"
            if done > start:  # A part of the first has no known share of it
                left += f"  {clock(now / (done - start) * (total - done))} left"
        text = f"{title} {done}{left}  {note}"
        console.print(text.rstrip(), highlight=False, soft_wrap=True)

    return advance


RATE_SECONDS = 10.0  # the rate shown is the mean over this time


class Rate:
    """The rate of a growing number of bytes, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, size: int) -> str:
        """Return the recent rate, such as `12.3 MB/s`, given the number of bytes now."""
        now = time.monotonic()
        if self._seen and size < self._seen[-1][1]:
            self._seen.clear()  # the download started again
        self._seen.append((now, size))
        while now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        return f"{(size - before) / max(now - then, 1e-3) / 1e6:.1f} MB/s"


def clock(seconds: float) -> str:
    """Return seconds as h:mm:ss."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_seconds:02}"


def print_line(console: Console, text: str) -> None:
    """Print a line unchanged, without wrapping."""
    console.print(text, markup=False, soft_wrap=True)


def print_cautions(console: Console, cautions: Iterable[str]) -> None:
    """Print a line for each reason to doubt the numbers that follow."""
    for caution in cautions:
        print_line(console, f"caution: {printable(caution)}")


def print_rows(console: Console, rows: Mapping[str, object], *, indent: str = "") -> None:
    """Print one name and value per line."""
    width = max(map(len, rows))
    for name, value in rows.items():
        print_line(console, f"{indent}{name:<{width}}  {value}")


def print_summary(
    console: Console, *, headline: str, rows: Mapping[str, object], next_commands: Sequence[str]
) -> None:
    """Print a headline, rows of paths and facts, and commands to try next."""
    console.print(f"\n{headline}", style="bold")
    print_rows(console, rows, indent="  ")
    if next_commands:
        console.print("next:")
        for command in next_commands:
            print_line(console, f"  {command}")


SMALLEST = 1e-4  # below it numbers are written with an exponent, as `1.2e-05`


def significant(value: float, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, without trailing zeros, such as `0.25`.

    Digits before the point are never dropped: 10,130.4 is `10,130`, where `format` has `1.013e+04`.
    """
    if not math.isfinite(value) or 0 < abs(value) < SMALLEST:
        return f"{value:.{digits}g}"
    before_point = math.floor(math.log10(abs(value))) + 1 if value else 1
    decimals = max(0, digits - before_point)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


three_digits = partial(significant, digits=3)


@contextmanager
def redirected(descriptor: int, target: int) -> Iterator[None]:
    """Redirect one file descriptor to another, exact to the line; OSError if one is closed."""
    # C's buffer for a file or pipe is written when it is full. What was written before must not
    # reach the new target.
    flush_c()
    original = os.dup(descriptor)
    try:
        os.dup2(target, descriptor)
        yield
    finally:
        flush_c()
        os.dup2(original, descriptor)
        os.close(original)


@contextmanager
def discarded(descriptor: int) -> Iterator[None]:
    """Drop what is written to a file descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with redirected(descriptor, nowhere):
            yield
    finally:
        os.close(nowhere)


def discard_errors() -> AbstractContextManager[None]:
    """Drop what C++ writes to stderr while the context lasts."""
    return discarded(ERRORS)


@contextmanager
def discard_output() -> Iterator[None]:
    """Drop what C++ writes to stdout while the context lasts."""
    # Python has a buffer of its own above C's, which would be written while output is discarded.
    sys.stdout.flush()
    with discarded(OUTPUT):
        yield


@contextmanager
def separate_python_output() -> Iterator[None]:
    """Give Python's stdout a separate descriptor of the same terminal, file or pipe.

    So descriptor 1 can be `redirected` to a log that gets neither what this program prints nor the
    progress bar, which a thread draws. If stdout is not on descriptor 1, nothing changes.
    """
    output = sys.stdout
    try:
        is_descriptor_1 = isinstance(output, io.TextIOWrapper) and output.fileno() == OUTPUT
    except io.UnsupportedOperation:
        is_descriptor_1 = False
    if not is_descriptor_1:
        yield
        return
    assert isinstance(output, io.TextIOWrapper)
    output.flush()
    apart = LastingOutput(os.dup(OUTPUT), closes=True)
    with text_stream(apart, like=output) as stream, redirect_stdout(stream):
        yield
    if before := lasting(output):
        before.problem = before.problem or apart.problem


def flush_c() -> None:
    """Flush the buffers of C's stdio, which for files are written only when they are full."""
    ctypes.CDLL(None).fflush(None)
