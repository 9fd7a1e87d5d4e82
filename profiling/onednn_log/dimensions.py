"""The sizes in a problem's shape, in the spellings of oneDNN's log."""

import re
from math import prod

NAMED = re.compile(r"([a-z]+)(\d+)")

Dimensions = tuple[int, ...]


def named_sizes(shape: str) -> dict[str, int]:
    """`mb2_ic64oc64_ih200oh200kh3…` as names and sizes; `n"…"` and the like are passed over."""
    return {name: int(size) for name, size in NAMED.findall(shape.replace("_", ""))}


def listed_sizes(shape: str) -> list[Dimensions]:
    """`400x256:256x64` as one tuple for each tensor.

    Raises:
        ValueError: A size is unknown until the primitive runs (`*`), or is no number.
    """
    return [tuple(map(int, tensor.split("x"))) for tensor in shape.split(":")]


def elements(shape: str) -> int:
    """Of one tensor, in either spelling: `2x256x100x100`, `mb2ic256ih100iw100`.

    Raises ValueError, see `listed_sizes`.
    """
    if shape.startswith("x"):  # how 2.x and 3.x name the size of a tensor of one dimension
        return int(shape[1:])
    if not re.match(r"(?:g\d+)?mb", shape):
        return prod(listed_sizes(shape)[0])
    named = named_sizes(shape)
    return prod(named.get(name, 1) for name in ("mb", "ic", "id", "ih", "iw"))


def product_sizes(shape: str) -> tuple[int, int, int, int]:
    """Batch, rows, columns and inner size: of `b2m3n4k5` (1.x), or `2x3x5:2x5x4`.

    Raises ValueError, KeyError or IndexError where it is neither.
    """
    if not shape[:1].isdigit():
        sizes = named_sizes(shape)
        return sizes.get("b", sizes.get("mb", 1)), sizes["m"], sizes["n"], sizes["k"]
    left, right = listed_sizes(shape)[:2]
    batch = prod(max(pair) for pair in zip(left[:-2], right[:-2], strict=True))
    return batch, left[-2], right[-1], left[-1]
