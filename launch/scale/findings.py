"""What a scaling study says in a line each, beside the targets of the standard workload."""

from collections.abc import Sequence

from launch.scale.numbers import Measured, times_the_throughput
from profiling.bench.finding import Finding
from retinanet.config import Config

LARGEST_EXCHANGE = 0.05
"""Of a step, with gradients in BF16."""
STANDARD_SIZE = 800
STANDARD_BATCH = 2


def is_standard(config: Config) -> bool:
    """Whether the targets are for this workload."""
    return config.data.image_size == STANDARD_SIZE and config.engine.precision == "bf16"


def findings(
    measured: Sequence[Measured], *, config: Config, global_batch: int | None
) -> list[Finding]:
    """More ranks against fewer on as many cores, and the largest shares of communication.

    Args:
        measured: All combinations that have run.
        config: What they ran.
        global_batch: Images of all ranks in a step, where it is the same for all.
    """
    standard = is_standard(config)
    is_compressed = config.distributed.compress == "bf16"
    found = []
    if global_batch is not None:
        targets = standard and global_batch == STANDARD_BATCH
        found += same_cores(measured, global_batch=global_batch, with_targets=targets)
    return found + communication(measured, with_targets=standard and is_compressed)


def same_cores(
    measured: Sequence[Measured], *, global_batch: int, with_targets: bool
) -> list[Finding]:
    """Every combination against that of the fewest ranks with as many compute threads in all."""
    found = []
    for one in measured:
        of_same = [other for other in measured if total_threads(other) == total_threads(one)]
        base = min(of_same, key=lambda other: other.combination.ranks)
        if base is one:
            continue
        ratio = times_the_throughput(one, base)
        pair = (shape(one), shape(base))
        found.append(
            Finding(
                what=f"{one.combination.name} against {base.combination.name}, "
                f"{global_batch} images a step both",
                value=ratio.median,
                shown=f"{ratio.median:.2f} times as fast ({ratio.lowest:.2f}–{ratio.highest:.2f})",
                at_least=1.0 if with_targets and pair == ((2, 1), (1, 2)) else None,
            )
        )
    return found


def shape(one: Measured) -> tuple[int, int]:
    """Ranks, and threads of each."""
    return one.combination.ranks, one.combination.threads


def total_threads(one: Measured) -> int:
    """Over all ranks."""
    return one.combination.ranks * one.combination.threads


def communication(measured: Sequence[Measured], *, with_targets: bool) -> list[Finding]:
    """The largest share of a step in waiting for gradients, and that exchanging them adds."""
    exposed = [(one.exposed_share, one.combination.name) for one in measured]
    added = [(one.added_share, one.combination.name) for one in measured]
    shares = (("waiting for gradients", exposed), ("what the exchange adds", added))
    found = []
    for what, all_values in shares:
        values = [(share, name) for share, name in all_values if share is not None]
        if values:
            value, name = max(values)
            found.append(
                Finding(
                    what=f"{what}, largest share of a step",
                    value=value,
                    shown=f"{value:.4f} ({name})",
                    at_most=LARGEST_EXCHANGE if with_targets else None,
                )
            )
    return found
