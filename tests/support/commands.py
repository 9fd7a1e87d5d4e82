"""The type of the fixture that runs commands, and the error of a command."""

from collections.abc import Callable
from subprocess import CompletedProcess

RunHere = Callable[..., CompletedProcess[str]]
"""`run_here(main, *arguments)` runs a command in this process: starting Python takes seconds."""


def error_line(done: CompletedProcess[str]) -> str:
    """Return the error of a command that refused its input, which is one line."""
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    return line
