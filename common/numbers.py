"""Numbers in files that other programs or other users wrote.

JSON and YAML hold numbers of any size, and NaN. Sums and products of a few of those overflow, and a
number of threads with 24 digits is no index. So whatever was parsed is checked once, before use.
"""

from typing import Any

from common.errors import InputError

LARGEST = 1e19  # Nanoseconds since 1970 and 64-bit integers are below


def require_moderate(
    content: Any, source: str, *, least: float = 0.0, largest: float = LARGEST, advice: str = ""
) -> None:
    """Refuse numbers that nothing can have which was measured.

    `content` is of JSON or YAML: objects, lists, plain values. A number other than 0 must be from
    `least` to `largest`, whatever its sign. `advice` ends the message.

    Raises:
        InputError: Names `source` and the field of such a number, or of NaN.
    """
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), content)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [((*path, key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [((*path, place), inner) for place, inner in enumerate(value)]
        # NaN compares false.
        elif isinstance(value, int | float) and value and not least <= abs(value) <= largest:
            bounds = f"from {least:g} to {largest:g}" if least else f"of at most {largest:g}"
            raise InputError(
                f"{source}: {'.'.join(map(str, path))}: expected a number {bounds}{advice}"
            )
