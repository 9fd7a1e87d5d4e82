"""Which ranks are one compute group (`distributed.groups`)."""

from retinanet.errors import InputError


def ranks_of_groups(ranks: int, groups: int) -> list[tuple[int, ...]]:
    """Neighbours make a group: of 8 ranks, 0-3 and 4-7. `groups` divides `ranks`."""
    size = ranks // groups
    return [tuple(range(first, first + size)) for first in range(0, ranks, size)]


def group_of_rank(rank: int, *, ranks: int, groups: int) -> int:
    """The number of a rank's compute group."""
    return rank // (ranks // groups)


def require_groups(groups: int, *, ranks: int) -> None:
    """Refuse groups that are not of equal size.

    Raises:
        InputError: `groups` does not divide the ranks.
    """
    if ranks % groups == 0:
        return
    fitting = [str(one) for one in range(1, ranks + 1) if ranks % one == 0]
    words = f"{', '.join(fitting[:-1])} or {fitting[-1]}" if fitting[1:] else fitting[0]
    there = "there is 1 rank" if ranks == 1 else f"there are {ranks} ranks"
    raise InputError(
        f"distributed.groups: {groups} groups cannot be of equal size: {there}; use {words}"
    )


def planned_groups(groups: int, *, ranks: int) -> str:
    """What a configuration says of so many ranks, in words; empty where there is one group.

    Raises:
        InputError: `groups` does not divide the ranks.
    """
    require_groups(groups, ranks=ranks)
    size = ranks // groups
    of = "1 rank" if size == 1 else f"{size} ranks"
    return f"{groups} of {of}, none waits for another" if groups > 1 else ""
