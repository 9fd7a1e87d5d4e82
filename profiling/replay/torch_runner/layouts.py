"""Layouts as oneDNN's tags tell them: letters are dimensions, outermost first."""

from collections.abc import Sequence


def is_plain(tag: str) -> bool:
    """Whether nothing is blocked: `acdb` is plain, `aBcd16b` is not."""
    return bool(tag) and tag.isalpha() and tag.islower()


def order_of(tag: str) -> list[int]:
    """Dimensions from the outermost to the innermost: `acdb` is [0, 2, 3, 1]."""
    return [ord(letter) - ord("a") for letter in tag]


def is_channels_last(tag: str) -> bool:
    """Whether the second dimension is the innermost: `acb`, `acdb`, `acdeb`."""
    return tag in ("acb", "acdb", "acdeb")


def same_order(tag: str, other: str, dims: Sequence[int]) -> bool:
    """Whether two plain tags are the same for a tensor of these dimensions.

    A dimension of 1 may stand anywhere: it is never walked along.
    """

    def walked(order: list[int]) -> list[int]:
        return [place for place in order if place >= len(dims) or dims[place] != 1]

    return walked(order_of(tag)) == walked(order_of(other))
