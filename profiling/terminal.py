"""What commands say of logs and traces, of which nothing is trusted."""

from rich.console import Console


def say(console: Console, text: str) -> None:
    """A line as it is, however long."""
    console.print(text, markup=False, soft_wrap=True)
