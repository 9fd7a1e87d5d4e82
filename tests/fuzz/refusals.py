"""What a reader may do with a bad input: refuse it in one printable line that names it."""

from collections.abc import Callable
from typing import TypeVar

from common.errors import LONGEST, InputError

Value = TypeVar("Value")


def value_or_refusal(read: Callable[[], Value], *names: str) -> Value | None:
    """What `read` returns, or None where it refuses as it should. Any other error goes through.

    Args:
        read: Reads the input.
        names: Of which a refusal must name one: the file, a variable. Without any it is free.

    Raises:
        AssertionError: The refusal is no clear line.
    """
    try:
        return read()
    except InputError as error:
        message = str(error)
    assert message and message.isprintable() and len(message) <= LONGEST, repr(message)
    assert not names or any(name in message for name in names), repr(message)
    return None
