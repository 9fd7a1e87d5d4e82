"""Files of results that commands keep as JSON, and go on with: read back, or told in one line."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from retinanet.errors import InputError
from retinanet.regular_files import read_bytes

Kept = TypeVar("Kept")


def read_kept(file: Path, schema: TypeAdapter[Kept], *, wrong: str, advice: str) -> Kept:
    """What a file holds.

    Args:
        file: Where it is.
        schema: Of what it should hold.
        wrong: What to say of another file, such as `is no result of …`.
        advice: What the user can do about it.

    Raises:
        InputError: It cannot be read, or holds something else; names the file and the field.
    """
    try:
        return schema.validate_json(read_bytes(file))
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file}: {wrong} ({field}: {first['msg']}); {advice}") from error
