"""Which sizes of images and boxes can be trained on; here nothing loads torch."""

MINIMUM_SIDE = 1e-3
"""Pixels; a box with a shorter side has no area that float32 holds, and no IoU with any anchor."""


def is_resized_copy(decoded: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Whether two sizes (height, width) are of one shape, but for a pixel by which one was rounded.

    Boxes can be scaled from one to the other. With another shape (a turned photo, another picture)
    they would be nonsense.
    """
    excess = abs(decoded[0] * annotated[1] - decoded[1] * annotated[0])
    return excess <= max(annotated)


def is_quarter_turn(stored: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Return whether annotations fit an image only once it is turned by 90°, by (height, width)."""
    turned = stored[::-1]
    if annotated in (stored, turned):
        return annotated != stored
    return not is_resized_copy(stored, annotated) and is_resized_copy(turned, annotated)


def fits_both_ways(stored: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Return whether annotations fit an image as well turned by 90° as not turned."""
    turned = stored[::-1]
    if annotated in (stored, turned):
        return stored == turned
    return is_resized_copy(stored, annotated) and is_resized_copy(turned, annotated)
