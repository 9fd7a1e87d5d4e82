"""The job that measures a combination of ranks and threads."""

from collections.abc import Sequence
from pathlib import Path

from launch.scale.combinations import Combination
from profiling.bench.measured_job import MeasuredJob


def job_of_combination(
    one: Combination,
    *,
    config: str,
    overrides: Sequence[str],
    warm_up: int,
    steps: int,
    scenes: Path,
    own_model: bool = False,
) -> MeasuredJob:
    """Steps in turn with and without exchange, so that its cost shows within one job.

    Args:
        one: Ranks, threads and images of each rank.
        config: Name of the configuration that is trained.
        overrides: On top of it.
        warm_up: Steps that do not count.
        steps: That count.
        scenes: Folder for drawn scenes.
        own_model: Whether the configuration's model trains, and not MLPerf's.
    """
    here = (f"launch.threads={one.threads}", f"training.batch_size={one.batch_size}")
    return MeasuredJob(
        ranks=one.ranks,
        hosts=one.hosts,
        config=config,
        overrides=(*overrides, *here),
        warm_up=warm_up,
        steps=steps,
        alternate=True,
        scenes=scenes,
        own_model=own_model,
    )
