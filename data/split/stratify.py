"""Iterative stratification: each class's images on both sides in the shares of the whole.

Sechidis, Tsoumakas, Vlahavas: On the Stratification of Multi-Label Data, ECML PKDD 2011,
algorithm 1, for two sides. In addition the sides' sizes are exact, and each side is to have an
image of every class that two images show, as far as its size allows.
"""

from collections.abc import Sequence
from operator import itemgetter
from random import Random

SIDES = (TRAIN, VALIDATION) = (0, 1)


def stratified_rows(classes: Sequence[frozenset[int]], *, count: int, seed: int) -> set[int]:
    """Return the rows of `count` images to evaluate on, given the classes that each image shows.

    The rarest class among the images left is dealt out first, since later there is no choice.
    The same seed gives the same rows.
    """
    random = Random(seed)
    rows = random.sample(range(len(classes)), len(classes))
    rows_of: dict[int, list[int]] = {}
    for row in rows:
        for one in sorted(classes[row]):
            rows_of.setdefault(one, []).append(row)
    wanted = {
        one: _wanted(len(of_class), count / len(classes)) for one, of_class in rows_of.items()
    }
    left = {one: len(rows_of[one]) for one in random.sample(sorted(rows_of), len(rows_of))}
    room = [len(classes) - count, count]
    side_of: dict[int, int] = {}
    while left:
        rarest = min(left, key=left.__getitem__)  # of equally rare ones the first, at random
        # Training usually gets the first: those that show most of what validation lacks come last.
        of_class = [row for row in rows_of[rarest] if row not in side_of]
        lacking = [sum(wanted[one][VALIDATION] > 0 for one in classes[row]) for row in of_class]
        for _, row in sorted(zip(lacking, of_class, strict=True), key=itemgetter(0)):
            side = _side(wanted[rarest], room, random)
            side_of[row] = side
            room[side] -= 1
            for one in classes[row]:
                wanted[one][side] -= 1
                left[one] -= 1
        left = {one: images for one, images in left.items() if images}
    without_classes = [row for row in rows if row not in side_of]
    held_out = {row for row, side in side_of.items() if side == VALIDATION}
    return held_out | set(without_classes[: room[VALIDATION]])


def _wanted(images: int, share: float) -> list[float]:
    """How many images of a class each side is to have."""
    in_validation = images * share
    if images >= len(SIDES):
        in_validation = min(max(in_validation, 1.0), images - 1.0)
    return [images - in_validation, in_validation]


def _side(wanted: Sequence[float], room: Sequence[int], random: Random) -> int:
    """The side that lacks most of a class, then the one with more room, then either."""
    with_room = [side for side in SIDES if room[side]]
    return max(with_room, key=lambda side: (wanted[side], room[side], random.random()))
