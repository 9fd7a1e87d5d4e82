"""What commands say of logs and traces, of which nothing is trusted."""

from rich.console import Console


def printable(text: str) -> str:
    """Text of a log that does nothing to a terminal: control characters are replaced."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def say(console: Console, text: str) -> None:
    """A line as it is, however long."""
    console.print(text, markup=False, soft_wrap=True)
