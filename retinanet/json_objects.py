"""JSON files that commands read: an object, or one line that says what is wrong."""

import json
from pathlib import Path
from typing import Any

from retinanet.errors import InputError
from retinanet.regular_files import read_text


def read_json_object(file: Path, *, advice: str) -> dict[str, Any]:
    """The object that a file holds.

    Args:
        file: Where it is.
        advice: What was expected, or how to get such a file; it ends the message.

    Raises:
        InputError: The file cannot be read, or holds something else.
    """
    try:
        content = json.loads(read_text(file))
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}; {advice}") from error
    except (ValueError, RecursionError) as error:  # also bytes that are no text
        raise InputError(f"{file}: is not JSON; {advice}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: holds no JSON object; {advice}")
    return content
