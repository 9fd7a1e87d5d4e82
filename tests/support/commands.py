"""Commands as tests call them."""

from collections.abc import Callable
from subprocess import CompletedProcess

RunHere = Callable[..., CompletedProcess[str]]
"""`run_here(main, *arguments)`: a command in the tests' process, where Python need not start for it."""
