"""Results that a command has stored in a file, to continue from them."""

from codecs import BOM_UTF8
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from common.errors import InputError
from common.files import or_unreadable, read_bytes

Stored = TypeVar("Stored")


def read_stored(file: Path, kind: type[Stored], *, wrong: str, advice: str) -> Stored:
    """Return the results that a command has stored in a file, as a `kind` of record.

    `wrong` describes another file, such as `is no result of …`.

    Raises:
        InputError: It cannot be read, or holds something else; names the file and the field, and
            ends with `advice`.
    """
    with or_unreadable(file):
        content = read_bytes(file)
    try:
        # Not made before it is needed: for its first one, pydantic looks for plugins.
        return TypeAdapter(kind).validate_json(content.removeprefix(BOM_UTF8))
    except ValidationError as error:
        fault = first_fault(error)
        where = f"{fault.field or 'the file'}: {fault.message}"
        raise InputError(f"{file}: {wrong} ({where}); {advice}") from error


class Fault(NamedTuple):
    """What pydantic found wrong with content from outside."""

    path: tuple[str, ...]  # Of the field
    message: str  # begins with a capital letter
    kind: str  # pydantic's name of the error, such as `missing`
    found: object

    @property
    def field(self) -> str:
        """The field, such as `hosts.0.ranks`; empty: all of the content."""
        return ".".join(self.path)

    @property
    def after_name(self) -> str:
        """The message as it follows a field's name."""
        return self.message[0].lower() + self.message[1:]


def first_fault(error: ValidationError) -> Fault:
    """Return the first of pydantic's errors; a misspelt name, which is also missing, is first."""
    errors = error.errors(include_url=False, include_context=False)
    first = min(errors, key=lambda each: each["type"] != "unexpected_keyword_argument")
    return Fault(tuple(map(str, first["loc"])), first["msg"], first["type"], first["input"])


def first_difference(
    stored: Mapping[str, Any], current: Mapping[str, Any], *, ignored: Collection[str] = ()
) -> tuple[str, Any, Any] | None:
    """Return name, stored and present value of the first difference of definitions, or None.

    A command compares the definition of stored results to its own. A missing value counts as None.
    """
    for name in {**stored, **current}:
        if name not in ignored and stored.get(name) != current.get(name):
            return name, stored.get(name), current.get(name)
    return None
