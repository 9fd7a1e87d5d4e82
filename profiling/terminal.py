"""What commands say of logs and traces, of which nothing is trusted."""

from collections.abc import Iterable

from rich.console import Console

from retinanet.printable import printable


def say(console: Console, text: str) -> None:
    """A line as it is, however long."""
    console.print(text, markup=False, soft_wrap=True)


def print_cautions(console: Console, cautions: Iterable[str]) -> None:
    """Print a line for each thing that speaks against the numbers that follow."""
    for caution in cautions:
        say(console, f"caution: {printable(caution)}")
