"""A scaling study as programs read it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from launch.scale.combinations import Combination
from launch.scale.numbers import Measured, efficiency, smallest


def combinations_json(
    combinations: Sequence[Combination], measured: Sequence[Measured], *, weak: bool
) -> list[dict[str, Any]]:
    """Each combination: whether it fits, its numbers if it has run, and every rank's steps.

    Seconds; shares of a step from 0 to 1; `normalized` to the smallest combination's throughput.
    """
    base = smallest(measured).images_per_second
    found = {one.combination: one for one in measured}
    return [
        {
            "ranks": one.ranks,
            "threads": one.threads,
            "batch_size": one.batch_size,
            "images_a_step": one.images,
            "fits": not one.misfit,
            "why_not": one.misfit or None,
            "hosts": dict(one.hosts),
            **(numbers(found[one], measured, base=base, weak=weak) if one in found else {}),
        }
        for one in combinations
    ]


def numbers(
    one: Measured, measured: Sequence[Measured], *, base: float, weak: bool
) -> dict[str, Any]:
    """What one combination has shown; jobs stand in the order of rounds."""
    return {
        "step_s": one.step_seconds,
        "images_per_s": one.images_per_second,
        "normalized": one.images_per_second / base,
        "weak_scaling_efficiency": efficiency(one, measured) if weak else None,
        "data_share": one.data_share,
        "exchange_exposed_share": one.exposed_share,
        "exchange_added_share": one.added_share,
        "jobs": [[asdict(rank) for rank in job] for job in one.jobs],
    }
