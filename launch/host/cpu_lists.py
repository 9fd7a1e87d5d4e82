"""The kernel's way to write sets of CPUs and memory nodes: `0-3,8`."""

from collections.abc import Iterable

MOST_NUMBERS = 65_536


def parse_cpu_list(text: str) -> frozenset[int]:
    """The numbers of a list such as `0-3,8`; an empty text is an empty set.

    Raises:
        ValueError: The text is not such a list.
    """
    stripped = text.strip()
    if not stripped:
        return frozenset()
    numbers: set[int] = set()
    listed = 0
    for part in stripped.split(","):
        found = numbers_of(part.strip())
        listed += len(found)
        if listed > MOST_NUMBERS:
            raise ValueError(f"more than {MOST_NUMBERS:,} CPUs")
        numbers.update(found)
    return frozenset(numbers)


def numbers_of(part: str) -> range:
    """`8`, or `0-3` with both ends."""
    first, dash, last = part.partition("-")
    if not (is_number(first) and (is_number(last) if dash else True)):
        raise ValueError(f"expected a list such as 0-3,8, found {part!r}")
    if dash and int(last) < int(first):
        raise ValueError(f"{part!r} ends before it begins")
    return range(int(first), int(last if dash else first) + 1)


def is_number(text: str) -> bool:
    """Whether it is plain digits, and few enough for a CPU's number."""
    return text.isascii() and text.isdigit() and len(text) <= 6


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Numbers in the kernel's way, ascending, runs as `0-3`; nothing is an empty text."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
