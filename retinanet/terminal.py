"""What reaches a terminal: text from files and logs is shown, and never obeyed."""

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.segment import Segment

from retinanet.printable import printable


def make_console(
    *, quiet: bool = False, stderr: bool = False, width: int | None = None, pipe_width: int = 120
) -> Console:
    """A console that prints text as it is: `[red]` is no markup, `:dog:` no emoji, and of control
    characters and escape sequences only its own reach the terminal.

    Args:
        quiet: Whether it prints nothing.
        stderr: Whether it prints there.
        width: Columns; None takes the terminal's.
        pipe_width: Columns where there is no terminal, for whole lines.
    """
    console = Console(highlight=False, markup=False, emoji=False, quiet=quiet, stderr=stderr)
    if width is not None:
        console.width = width
    elif not console.is_terminal:
        console.width = pipe_width
    console.push_render_hook(PrintableOnly())
    return console


class PrintableOnly(RenderHook):
    """Wraps whatever is printed, tables included."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """The same, with what is not printed replaced."""
        return [PrintableSegments(one) for one in renderables]


class PrintableSegments:
    """A renderable whose text is made printable piece by piece, colours and moves apart."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        yield from map(printable_segment, console.render(self.inner, options))


def printable_segment(segment: Segment) -> Segment:
    """A piece of text without control characters, but for the ends of lines."""
    if segment.control or segment.text.isprintable():
        return segment
    return Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)
