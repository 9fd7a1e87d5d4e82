"""How many images each rank takes of a batch: all as many, as told, or in proportion to speed.

`training.batch_size` is their mean, however they are split: the images of a step, the learning rate
and the steps of an epoch are the same.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

from pydantic_core import PydanticCustomError

from launch.host.cpu_lists import format_cpu_list
from retinanet.errors import InputError

BatchSplit = Literal["even", "speed"] | tuple[int, ...]
"""What `distributed.batch_split` may be."""
MOST_IMAGES = 10**6
"""Of a rank in a batch. What fits a host's memory is checked before a run."""


def require_split(value: object) -> object:
    """Refuse what is neither a word for a split nor the images of each rank."""
    if isinstance(value, str) and value in ("even", "speed"):
        return value
    counts = tuple(value) if isinstance(value, list | tuple) else ()
    if counts and all(type(one) is int and 1 <= one <= MOST_IMAGES for one in counts):
        return counts
    advice = "input should be even, speed, or the images of each rank, such as [3, 1]"
    raise PydanticCustomError("batch_split", advice)


def split_at_start(split: BatchSplit, *, batch_size: int, ranks: int) -> tuple[int, ...]:
    """Images of each rank in a batch; even where `speed` is still to be measured.

    Args:
        split: As in the configuration.
        batch_size: Images of a rank, on average.
        ranks: How many there are.

    Raises:
        InputError: A list is not of these ranks, or not of this batch.
    """
    if isinstance(split, str):
        return (batch_size,) * ranks
    total = ranks * batch_size
    if len(split) != ranks or sum(split) != total:
        numbers = "1 number" if ranks == 1 else f"{ranks} numbers"
        raise InputError(
            f"distributed.batch_split: expected {numbers} with the sum {total} (ranks × "
            f"training.batch_size={batch_size}), even or speed, found {list(split)}"
        )
    return split


def split_by_speed(
    speeds: Sequence[float], *, images: int, most: Sequence[int] = ()
) -> tuple[int, ...]:
    """The images of each rank with which the slowest rank is done soonest.

    A rank's time is taken to be proportional to its images. Each has one; every further image goes
    where it would be done first, so that no other split ends earlier.

    Args:
        speeds: Of each rank, above 0. [images/s]
        images: Of all ranks together, one each at least.
        most: Of each rank, what its memory holds, together `images` at least; none: all of them.
    """
    limits = most or [images] * len(speeds)
    assert min(speeds) > 0 and len(speeds) <= images <= sum(limits) and min(limits) > 0
    split = [1] * len(speeds)
    next_done = [(2 / speed, rank) for rank, speed in enumerate(speeds) if limits[rank] > 1]
    heapify(next_done)
    for _ in range(images - len(speeds)):
        _, rank = heappop(next_done)
        split[rank] += 1
        if split[rank] < limits[rank]:
            heappush(next_done, ((split[rank] + 1) / speeds[rank], rank))
    return tuple(split)


def largest_batch(split: BatchSplit, *, batch_size: int) -> int:
    """Images of the rank that has most, as far as a configuration says."""
    return batch_size if isinstance(split, str) else max(split)


def described_split(images: Sequence[int], speeds: Sequence[float] = ()) -> str:
    """Such as `3 images on rank 0, 1 on ranks 1-2, by measured speed 2.10 and 0.68–0.71 images/s`.

    Args:
        images: Of each rank in a batch.
        speeds: Of each rank, where they were measured. [images/s]
    """
    ranks_of = {count: [r for r, one in enumerate(images) if one == count] for count in images}
    parts = [
        f"{count} on rank{'s' if len(ranks) > 1 else ''} {format_cpu_list(ranks)}"
        for count, ranks in ranks_of.items()
    ]
    unit = "image" if images[0] == 1 else "images"
    words = ", ".join(parts).replace(" on", f" {unit} on", 1)
    if not speeds:
        return words
    measured = (range_of([speeds[rank] for rank in ranks]) for ranks in ranks_of.values())
    return f"{words}, by measured speed {' and '.join(measured)} images/s"


def planned_split(split: BatchSplit, *, batch_size: int, ranks: int) -> str:
    """What a configuration says of so many ranks, in words; empty where all have as many.

    Raises:
        InputError: A list is not of these ranks, or not of this batch.
    """
    images = split_at_start(split, batch_size=batch_size, ranks=ranks)
    if split == "speed" and ranks > 1 and batch_size > 1:
        return f"{sum(images)} images, split by the speed of each rank as measured at the start"
    return described_split(images) if len(set(images)) > 1 else ""


def range_of(speeds: Sequence[float]) -> str:
    """`2.10`, or `0.68–0.71`."""
    lowest, highest = f"{min(speeds):.2f}", f"{max(speeds):.2f}"
    return lowest if lowest == highest else f"{lowest}–{highest}"
