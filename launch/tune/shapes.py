"""Which of the ranks and threads that a host can have are worth measuring."""

from collections.abc import Sequence
from itertools import product

from launch.tune.step_time import Shape

BATCH_SIZES = (1, 2, 4)
"""Images of a rank, measured and planned beside the configuration's own number: more gain little,
and make global batches large."""


def measured_pairs(shapes: Sequence[tuple[int, int]], *, most: int) -> list[tuple[int, int]]:
    """Ranks and threads to measure: some of the host's shapes, and single ranks of their threads.

    A single rank tells what threads bring, several what ranks take from each other.

    Args:
        shapes: All of the host, by ranks.
        most: So many of them at the most, beside the one of most ranks.
    """
    step = max(1, -(-len(shapes) // most))
    chosen = [*shapes[::step], shapes[-1]]
    alone = [(1, threads) for _, threads in chosen]
    return sorted(dict.fromkeys([*alone, *chosen]))


def with_batches(pairs: Sequence[tuple[int, int]], *, own: int) -> list[Shape]:
    """Every pair of ranks and threads with every one of `BATCH_SIZES`, and `own` images of a rank.

    `own`: the configuration's.
    """
    sizes = sorted({*BATCH_SIZES, own})
    return [
        Shape(ranks=ranks, threads=threads, batch_size=batch_size)
        for (ranks, threads), batch_size in product(pairs, sizes)
    ]
