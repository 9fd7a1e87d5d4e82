"""Results that a command has stored in a file, to continue from them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from common.errors import InputError
from common.files import or_unreadable, read_bytes

Stored = TypeVar("Stored")


def read_stored(file: Path, schema: TypeAdapter[Stored], *, wrong: str, advice: str) -> Stored:
    """Return the results that a command has stored in a file, to continue from them.

    `wrong` describes another file, such as `is no result of …`.

    Raises:
        InputError: It cannot be read, or holds something else; names the file and the field, and
            ends with `advice`.
    """
    with or_unreadable(file):
        content = read_bytes(file)
    try:
        return schema.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file}: {wrong} ({field}: {first['msg']}); {advice}") from error


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
