"""Messages between ranks: JSON, checked against the type that the receiver expects.

Nothing that comes over a network is unpickled, since a pickle is a program. A value is written as
JSON, dataclasses as objects of their fields; NaN and infinite numbers keep their values. A receiver
builds only what its type describes, of bytes that it has counted before.
"""

import functools
import json
from dataclasses import is_dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from common.errors import InputError
from common.stored import first_fault

MOST_BYTES = 64_000_000
"""Of one message. The largest hold a few kilobytes of each rank, or a line of each bad image."""
SAME_VERSION = "use the same version of this program on all hosts"


def encode(value: Any) -> bytes:
    """Return a message with a value: JSON's kinds of values, tuples, sets and dataclasses."""
    # Lone surrogates, such as of a file's name that is no UTF-8, would be refused by the receiver.
    text = json.dumps([value], default=as_json, ensure_ascii=False, separators=(",", ":"))
    content = text.encode("utf-8", "replace")
    if len(content) > MOST_BYTES:
        raise InputError(f"a message has {len(content):,} bytes, more than {MOST_BYTES:,}")
    return content


def as_json(value: Any) -> Any:
    """Return a dataclass or set as a value that JSON has."""
    if isinstance(value, set | frozenset):
        return list(value)
    if is_dataclass(value):
        return vars(value)
    raise TypeError(f"{type(value).__name__} cannot be sent to other ranks")


def decode(content: bytes, kind: Any, *, sender: str) -> Any:
    """Return the value of a message; `kind` is its type, such as `int | None` or a dataclass.

    Raises:
        InputError: It is no message with such a value; names the `sender`.
    """
    try:
        [value] = schema(kind).validate_json(content)
    except ValidationError as error:
        fault = first_fault(error)
        place = ".".join(fault.path[1:]) or "it"
        raise InputError(
            f"the message of {sender} cannot be used ({place}: {fault.message}); {SAME_VERSION}"
        ) from error
    return value


@functools.cache
def schema(kind: Any) -> TypeAdapter[tuple[Any]]:
    """Return the check of messages with a value of this type."""
    # In a tuple, since the settings of a bare dataclass would be its own.
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid"))


def checked_length(length: int, *, sender: str) -> int:
    """Return the number of bytes that a sender has announced.

    Raises:
        InputError: No message is so long.
    """
    if not 0 < length <= MOST_BYTES:
        raise InputError(f"{sender} announces a message of {length:,} bytes; {SAME_VERSION}")
    return length
