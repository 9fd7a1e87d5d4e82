"""What a scaling study leaves: tables and findings, JSON, a chart."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.scale.as_json import combinations_json
from launch.scale.combinations import Combination
from launch.scale.findings import findings, is_standard
from launch.scale.numbers import Measured
from launch.scale.report import print_study
from launch.scale.rounds import Rounds
from profiling.bench.environment import environment
from profiling.bench.findings_output import put_out
from profiling.bench.other_load import disturbance
from retinanet.config import Config


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the study was asked for, beside its combinations."""

    config_name: str
    overrides: Sequence[str]
    config: Config
    global_batch: int | None
    """Images of all ranks in a step, where it is the same for all combinations."""
    steps: int
    warm_up: int
    rounds: int

    @property
    def is_weak(self) -> bool:
        """Whether each rank has as many images, whatever the number of ranks."""
        return self.global_batch is None


def put_out_study(
    study: Rounds,
    combinations: Sequence[Combination],
    asked: Asked,
    *,
    console: Console,
    json_file: Path | None,
    chart: Path | None,
) -> None:
    """Print what was measured, and write it; there is something.

    Raises:
        InputError: A file cannot be written.
    """
    measured = study.measured
    print_study(console, combinations, measured, weak=asked.is_weak)
    disturbed = disturbance(study.other_cores)
    if disturbed:
        console.print(disturbed, soft_wrap=True)
    put_out(
        findings(measured, config=asked.config, global_batch=asked.global_batch),
        benchmark="scale",
        workload=workload_json(study, combinations, asked),
        with_targets=is_standard(asked.config),
        json_file=json_file,
    )
    if chart is not None:
        draw(measured, chart, asked)
        console.print(f"chart: {chart}", soft_wrap=True)


def workload_json(
    study: Rounds, combinations: Sequence[Combination], asked: Asked
) -> dict[str, Any]:
    """Everything but the findings and the machine."""
    return {
        "config": asked.config_name,
        "overrides": list(asked.overrides),
        "image_size": asked.config.data.image_size,
        "precision": asked.config.engine.precision,
        "exchange": ways(study.measured),
        "compress": asked.config.distributed.compress,
        "global_batch": asked.global_batch,
        "steps": asked.steps,
        "warm_up": asked.warm_up,
        "rounds": asked.rounds,
        "cores_busy_otherwise": study.other_cores,
        "complete": study.done == len(study.order),
        "ended_by": study.ended_by or None,
        "combinations": combinations_json(combinations, study.measured, weak=asked.is_weak),
    }


def ways(measured: Sequence[Measured]) -> list[str]:
    """The ways that gradients took, of all combinations of several ranks."""
    return sorted({job[0].way for one in measured for job in one.jobs if len(job) > 1})


def draw(measured: Sequence[Measured], chart: Path, asked: Asked) -> None:
    """The chart, with what it is of in its title."""
    # Here, because matplotlib is slow to load and other commands do not need it.
    from launch.scale.chart import draw_chart  # noqa: PLC0415

    images = (
        f"{asked.global_batch} images a step"
        if asked.global_batch
        else f"{measured[0].combination.batch_size} images a rank and step"
    )
    size, precision = asked.config.data.image_size, asked.config.engine.precision
    compress = asked.config.distributed.compress
    travels = "BF16" if compress == "bf16" else "float32"
    draw_chart(
        measured,
        chart,
        title=f"{images} of {size}×{size}, {precision}; gradients travel in {travels} by "
        f"{' and '.join(ways(measured)) or 'none'}; {environment()['cpu']}",
        weak=asked.is_weak,
    )
