"""Inputs as files, and what a reader may do with them."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from common.errors import LONGEST, InputError

Value = TypeVar("Value")


def write_file(file: Path, content: bytes) -> Path:
    """Write a file and return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def value_or_error(read: Callable[[], Value], *names: str) -> Value | None:
    """Return the value of `read`, or None if it raises a valid InputError.

    Args:
        read: Reads the input.
        names: The message must contain one of them, such as the file or a variable; if any.

    Raises:
        AssertionError: The message is not one printable, bounded line with a name.
    """
    try:
        return read()
    except InputError as error:
        message = str(error)
    assert message and message.isprintable() and len(message) <= LONGEST, repr(message)
    assert not names or any(name in message for name in names), repr(message)
    return None
