"""The type of the fixture that runs commands."""

from collections.abc import Callable
from subprocess import CompletedProcess

RunHere = Callable[..., CompletedProcess[str]]
"""`run_here(main, *arguments)` runs a command in this process: starting Python takes seconds."""
